package main

import (
	"io"
	"log/slog"
)

// logFlags say how a long-running command logs.
type logFlags struct {
	LogFormat string     `name:"log-format" enum:"text,json" default:"text" env:"QUOTAD_LOG_FORMAT" help:"How log lines are written: ${enum}."`
	LogLevel  slog.Level `name:"log-level" default:"info" env:"QUOTAD_LOG_LEVEL" help:"The least level that is logged: debug, info, warn, error."`
}

// logger makes the one logger of a command.
func (f logFlags) logger(to io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: f.LogLevel}
	if f.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(to, options))
	}
	return slog.New(slog.NewTextHandler(to, options))
}
