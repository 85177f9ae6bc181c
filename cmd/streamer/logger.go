package main

import (
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"

	"github.com/lmittmann/tint"
)

// newLogger writes for a person on a terminal, and JSON for everything else.
func newLogger(file *os.File, level slog.Level) *slog.Logger {
	if isTerminal(file) {
		return slog.New(tint.NewTextHandler(file, &tint.Options{Level: level, TimeFormat: "15:04:05.000"}))
	}
	return slog.New(slog.NewJSONHandler(file, &slog.HandlerOptions{Level: level, ReplaceAttr: readableDuration}))
}

// isTerminal says whether a person reads along.
func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// readableDuration writes 25ms where JSON would have a number of nanoseconds.
func readableDuration(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// logLevel is a level as a person names it.
type logLevel slog.Level

var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
}

// UnmarshalText is called by the flag library.
func (l *logLevel) UnmarshalText(text []byte) error {
	level, ok := logLevels[strings.ToLower(string(text))]
	if !ok {
		return fmt.Errorf("%q is none of debug, info, warn and error", text)
	}
	*l = logLevel(level)
	return nil
}

// version is what the build knows of itself.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	text := info.Main.Version
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" && text == "(devel)" {
			text = setting.Value
		}
	}
	return "streamer " + text + " " + info.GoVersion
}
