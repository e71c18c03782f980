package main

import (
	"fmt"
	"runtime/debug"
)

type versionCmd struct{}

// Run prints the module version and the commit it was built from, where known.
func (versionCmd) Run(s *streams) error {
	version, revision := "devel", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" && info.Main.Version != "(devel)" {
			version = info.Main.Version
		}
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				revision = " " + setting.Value
			}
		}
	}
	_, err := fmt.Fprintf(s.Out, "quotad %s%s\n", version, revision)
	return err
}
