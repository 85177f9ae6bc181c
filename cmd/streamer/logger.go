package main

import (
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/lmittmann/tint"
)

// newLogger writes for a person on a terminal, and JSON for everything else.
func newLogger(file *os.File, level slog.Level) *slog.Logger {
	if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		return slog.New(tint.NewTextHandler(file, &tint.Options{Level: level, TimeFormat: "15:04:05.000"}))
	}
	return slog.New(slog.NewJSONHandler(file, &slog.HandlerOptions{Level: level}))
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
