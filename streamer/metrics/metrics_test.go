package metrics_test

import (
	"fmt"
	"reflect"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"millrace/streamer/metrics"
)

func TestEveryMetricIsMadeAndNamedAfterItsPackage(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()
	m := metrics.New(registry)

	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() {
			require.False(t, v.Field(i).IsNil(), "%s was declared but not made", f.Name)
		}
	}

	// A vector shows up once it has a value.
	m.ServerSubscribers.WithLabelValues("serving").Inc()
	m.ServerCloses.WithLabelValues("plain").Inc()
	m.ServerRefusals.WithLabelValues("not-ready").Inc()
	m.Undecodable("public", "t")

	families, err := registry.Gather()
	require.NoError(t, err)
	require.NotEmpty(t, families)
	name := regexp.MustCompile(`^millrace_(source|tail|changelog|server)(_[a-z]+)+$`)
	for _, f := range families {
		require.Regexp(t, name, f.GetName())
		require.NotEmpty(t, f.GetHelp(), f.GetName())
		if f.GetType().String() == "COUNTER" {
			require.Regexp(t, `_total$`, f.GetName())
		}
	}
}

func TestTablesOfUndecodableValuesAreBounded(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	for i := range 1000 {
		m.Undecodable("public", fmt.Sprintf("t%d", i))
	}
	m.Undecodable("public", "t3")

	values := map[string]float64{}
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "millrace_source_undecodable_values_total" {
			for _, metric := range f.GetMetric() {
				values[metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
			}
		}
	}
	require.Len(t, values, 101)
	require.InDelta(t, 2, values["public.t3"], 0)
	require.InDelta(t, 900, values["other"], 0)
}

func TestTwoStreamersNeedTwoRegistries(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()
	metrics.New(registry)
	require.Panics(t, func() { metrics.New(registry) })
	require.NotPanics(t, func() { metrics.New(prometheus.NewRegistry()) })
}
