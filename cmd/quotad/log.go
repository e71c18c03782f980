package main

import (
	"fmt"
	"io"
	"log/slog"
)

// logFlags say how a long-running command logs.
type logFlags struct {
	LogFormat string   `name:"log-format" enum:"text,json" default:"text" env:"QUOTAD_LOG_FORMAT" help:"How log lines are written: ${enum}."`
	LogLevel  logLevel `name:"log-level" default:"info" env:"QUOTAD_LOG_LEVEL" help:"The least level that is logged: debug, info, warn, error."`
}

// A logLevel is a level that says, of a text that is none, which there are.
type logLevel slog.Level

// UnmarshalText reads what [slog.Level] reads.
func (l *logLevel) UnmarshalText(text []byte) error {
	if err := (*slog.Level)(l).UnmarshalText(text); err != nil {
		return fmt.Errorf("must be debug, info, warn or error, not %q", text)
	}
	return nil
}

// logger makes the one logger of a command.
func (f logFlags) logger(to io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.Level(f.LogLevel)}
	if f.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(to, options))
	}
	return slog.New(slog.NewTextHandler(to, options))
}
