package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// An outcome adds up the decisions on a trace.
type outcome struct {
	plan         *catalog.Plan
	events       int64
	allowed      int64
	admittedCost int64 // units
	deniedBy     map[string]int64
	wouldDenyBy  map[string]int64
	reasons      map[quota.Reason]int64
	tenants      map[string]int64 // denials by tenant
	delayMillis  int64
	decisions    hash.Hash // over one character for each row, 1 if allowed, else 0
}

func newOutcome(plan *catalog.Plan) *outcome {
	return &outcome{
		plan:        plan,
		deniedBy:    make(map[string]int64),
		wouldDenyBy: make(map[string]int64),
		reasons:     make(map[quota.Reason]int64),
		tenants:     make(map[string]int64),
		decisions:   sha256.New(),
	}
}

var errOutcomeOverflow = errors.New("the trace's admitted cost or delay passes 63 bits")

// count adds a decision. It counts each limit that denied, so a row can count twice.
func (o *outcome) count(d *quota.Decision) error {
	o.events++
	for _, l := range d.Limits {
		if l.Violated {
			o.deniedBy[l.Name]++
		}
		if l.WouldDeny {
			o.wouldDenyBy[l.Name]++
		}
	}
	if !d.Allowed {
		o.decisions.Write([]byte{'0'})
		o.tenants[d.Tenant]++
		o.reasons[d.Reason]++
		return nil
	}
	o.decisions.Write([]byte{'1'})
	o.allowed++
	var delay int64
	if d.DelayMS != nil {
		delay = *d.DelayMS
	}
	for _, c := range d.Charges {
		if c.Cost > math.MaxInt64-o.admittedCost || delay > math.MaxInt64-o.delayMillis {
			return errOutcomeOverflow
		}
		o.admittedCost += c.Cost
	}
	o.delayMillis += delay
	return nil
}

// A summary is an outcome as JSON says it.
type summary struct {
	Events          int64                  `json:"events"`
	Allowed         int64                  `json:"allowed"`
	Denied          int64                  `json:"denied"`
	AdmittedCost    int64                  `json:"admitted_cost"`
	DeniedBy        map[string]int64       `json:"denied_by"` // by limit; zeros left out
	DecisionsSHA256 string                 `json:"decisions_sha256"`
	TopDenied       []tenantDenials        `json:"top_denied"`
	DelayMSTotal    *int64                 `json:"delay_ms_total,omitempty"` // if a limit of the plan shapes
	WouldDenyBy     map[string]int64       `json:"would_deny_by,omitempty"`  // by limit in shadow mode
	Reasons         map[quota.Reason]int64 `json:"reasons"`                  // of the denied rows
}

// tenantDenials is how often one tenant was denied; in JSON ["acme", 12].
type tenantDenials struct {
	tenant string
	denied int64
}

// MarshalJSON writes name and number as a pair.
func (t tenantDenials) MarshalJSON() ([]byte, error) { return json.Marshal([]any{t.tenant, t.denied}) }

func (o *outcome) summary(top int) summary {
	s := summary{
		Events: o.events, Allowed: o.allowed, Denied: o.events - o.allowed, AdmittedCost: o.admittedCost,
		DeniedBy: o.deniedBy, WouldDenyBy: o.wouldDenyBy, Reasons: o.reasons,
		DecisionsSHA256: hex.EncodeToString(o.decisions.Sum(nil)),
		TopDenied:       o.topDenied(top),
	}
	if o.shapes() {
		s.DelayMSTotal = &o.delayMillis
	}
	return s
}

// topDenied returns the tenants that were denied most, by name where equal.
func (o *outcome) topDenied(top int) []tenantDenials {
	all := make([]tenantDenials, 0, len(o.tenants))
	for tenant, denied := range o.tenants {
		all = append(all, tenantDenials{tenant, denied})
	}
	slices.SortFunc(all, func(a, b tenantDenials) int {
		return cmp.Or(cmp.Compare(b.denied, a.denied), cmp.Compare(a.tenant, b.tenant))
	})
	return all[:min(max(0, top), len(all))]
}

// shapes reports whether the plan makes allowed requests wait.
func (o *outcome) shapes() bool {
	return slices.ContainsFunc(o.plan.Limits, func(l catalog.Limit) bool {
		return l.Algorithm == catalog.LeakyBucket && l.Mode == catalog.ModeEnforce
	})
}

// print writes the outcome for people.
func (o *outcome) print(to io.Writer, top int) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "plan\t%s\n", o.plan.Name)
	fmt.Fprintf(w, "events\t%d\n", o.events)
	fmt.Fprintf(w, "allowed\t%d\t%s\tcost %d\n", o.allowed, percent(o.allowed, o.events), o.admittedCost)
	denied := o.events - o.allowed
	fmt.Fprintf(w, "denied\t%d\t%s\n", denied, percent(denied, o.events))
	for _, reason := range slices.Sorted(maps.Keys(o.reasons)) {
		fmt.Fprintf(w, "  %s\t%d\t%s\n", reason, o.reasons[reason], percent(o.reasons[reason], o.events))
	}
	if o.shapes() {
		fmt.Fprintf(w, "delayed\t%d ms\tin all\n", o.delayMillis)
	}
	fmt.Fprintf(w, "\nLIMIT\tMETER\tALGORITHM\tMODE\tDENIED\tWOULD DENY\n")
	for _, l := range o.plan.Limits {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\n",
			l.Name, l.Meter, l.Algorithm, l.Mode, o.deniedBy[l.Name], o.wouldDenyBy[l.Name])
	}
	if most := o.topDenied(top); len(most) > 0 {
		fmt.Fprintf(w, "\nTENANT\tDENIED\n")
		for _, t := range most {
			fmt.Fprintf(w, "%s\t%d\n", t.tenant, t.denied)
		}
	}
	return w.Flush()
}

// percent is part of whole with one decimal, rounded to the nearest.
func percent(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	thousandths := (part*1000 + whole/2) / whole
	return fmt.Sprintf("%d.%d%%", thousandths/10, thousandths%10)
}
