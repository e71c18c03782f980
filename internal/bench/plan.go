package main

import (
	"fmt"
	"strings"
	"time"
)

// Every subject decides the same: one unit of one meter under one sliding log that never
// denies, so that each decision does all of its work.
const (
	meterName  = "api.calls"
	planName   = "bench"
	hotTenant  = "hot"
	idleTenant = "idle" // a window ago it was busy
	limitUnits = 1_000_000_000
	limitSpan  = time.Hour
	tenantsMax = 10_000 // what a configuration file may hold
)

// configuration is a file for quotad to apply.
func configuration(tenants []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "meters:\n  %s: {unit: call}\nplans:\n  %s:\n    limits:\n"+
		"      - {name: hourly, meter: %s, algorithm: sliding_log, limit: %d, window: %s}\ntenants:\n",
		meterName, planName, meterName, limitUnits, limitSpan)
	for _, name := range tenants {
		fmt.Fprintf(&b, "  %s: {plan: %s}\n", name, planName)
	}
	return b.String()
}

// tenantNames are those that requests are spread over; the hot one alone for 0.
func tenantNames(tenants int) []string {
	if tenants == 0 {
		return []string{hotTenant}
	}
	names := make([]string, tenants)
	for i := range names {
		names[i] = fmt.Sprintf("tenant-%06d", i)
	}
	return names
}
