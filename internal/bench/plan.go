package main

import (
	"fmt"
	"strings"
	"time"
)

// Every subject decides the same: a model call's tokens, weighted to units of one meter,
// under a sliding log and a token bucket that never deny, so that each decision does all
// of its work.
const (
	meterName  = "llm.tokens"
	planName   = "bench"
	bucketName = "burst" // the plan's second limit
	hotTenant  = "hot"
	idleTenant = "idle" // a window ago it was busy
	// exhaustedTenant is also the name of its plan, of one call in a window.
	exhaustedTenant = "exhausted"
	inputTokens     = 20
	outputTokens    = 5
	outputWeight    = 4
	callUnits       = inputTokens + outputWeight*outputTokens
	limitUnits      = 999_999_999_999 // of the window, and the bucket's capacity
	limitSpan       = time.Hour
	tenantsMax      = 10_000 // what a configuration file may hold
)

// callPools are the tokens of one call.
func callPools() map[string]int64 {
	return map[string]int64{"input_tokens": inputTokens, "output_tokens": outputTokens}
}

// callBody is a request to consume.
func callBody(tenant string, dryRun bool) string {
	end := "}"
	if dryRun {
		end = `,"dry_run":true}`
	}
	return fmt.Sprintf(`{"tenant":%q,"meter":%q,"pools":{"input_tokens":%d,"output_tokens":%d}%s`,
		tenant, meterName, inputTokens, outputTokens, end)
}

// configuration is a file for quotad to apply, with one plan. The bucket refills a unit a microsecond,
// so its level is a whole number at every instant.
func configuration(plan string, units int64, tenants []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "meters:\n  %[1]s: {unit: token, weights: {input_tokens: 1, output_tokens: %[2]d}}\nplans:\n  %[3]s:\n    limits:\n"+
		"      - {name: hourly, meter: %[1]s, algorithm: sliding_log, limit: %[4]d, window: %[5]s}\n"+
		"      - {name: %[6]s, meter: %[1]s, algorithm: token_bucket, capacity: %[4]d, refill: 1000000/1s}\ntenants:\n",
		meterName, outputWeight, plan, units, limitSpan, bucketName)
	for _, name := range tenants {
		fmt.Fprintf(&b, "  %s: {plan: %s}\n", name, plan)
	}
	return b.String()
}

// bucketUsed is what is missing in the bucket a while after so much was.
func bucketUsed(used int64, elapsed time.Duration) int64 {
	return max(0, used-max(0, elapsed.Microseconds()))
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
