package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/quotad/quotad/internal/quota"
)

// printPreview says for whom a change would matter: who is denied now, and what is left of
// each limit before and after.
func printPreview(to io.Writer, p *quota.Preview) error {
	if p == nil {
		return nil
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	if len(p.Tenants) > 0 {
		fmt.Fprint(table, "\ntenant\tlimit\tbefore\tafter\t\n")
	}
	for i := range p.Tenants {
		printTenantPreview(table, &p.Tenants[i])
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&text, "\nthe change is about %s: %d would see a difference, %d would be denied a call of cost 1, or a hold, that passes now\n",
		tenants(p.Affected), p.Differ, p.Denied)
	if p.Looked < p.Affected {
		fmt.Fprintf(&text, "only the first %d were looked at\n", p.Looked)
	}
	if len(p.Tenants) < p.Differ {
		fmt.Fprintf(&text, "the first %d are listed, those that would be denied before the others\n", len(p.Tenants))
	}
	_, err := io.WriteString(to, trimLines(text.String()))
	return err
}

func printTenantPreview(to io.Writer, t *quota.TenantPreview) {
	name := shownName(t.Tenant)
	if t.PlanBefore != t.PlanAfter {
		fmt.Fprintf(to, "%s\tplan\t%s\t%s\t\n", name, t.PlanBefore, t.PlanAfter)
		name = ""
	}
	for i := range t.Limits {
		l := &t.Limits[i]
		mark := ""
		if l.Denied {
			mark = "denied"
		}
		fmt.Fprintf(to, "%s\t%s\t%s\t%s\t%s\n", name, l.Name, left(l.RemainingBefore, l.LimitBefore), left(l.RemainingAfter, l.LimitAfter), mark)
		name = ""
	}
	if len(t.Limits) == 0 && t.Denied {
		fmt.Fprintf(to, "%s\tstatus\t\t\tdenied\n", name)
	}
}

// left reads "12 of 1000"; "-" where there is no such limit or no bound.
func left(remaining, limit *int64) string {
	if remaining == nil || limit == nil {
		return "-"
	}
	return strconv.FormatInt(*remaining, 10) + " of " + strconv.FormatInt(*limit, 10)
}

func tenants(n int) string {
	if n == 1 {
		return "1 tenant"
	}
	return strconv.Itoa(n) + " tenants"
}

// trimLines drops the blanks that columns leave at the ends of lines.
func trimLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}
