package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// tenantsPage is how many tenants verify lists at a time.
const tenantsPage = 1000

// errFindings makes verify exit with 1 after it has said what it found. A verification
// that could not be made exits with 2: a job can tell the two apart.
var errFindings = errors.New("the ledger does not verify")

// errNotVerified wraps why nothing is known.
type errNotVerified struct{ error }

func (e errNotVerified) Unwrap() error { return e.error }

// ExitCode is what the process ends with.
func (errNotVerified) ExitCode() int { return 2 }

// verifyCmd proves that everything follows from the entries. It changes nothing and may
// run beside serving instances.
type verifyCmd struct {
	Database databaseFlags `embed:""`
	Tenant   string        `name:"tenant" placeholder:"ID" help:"Verify this tenant only."`
	JSON     bool          `name:"json" help:"Print the result as JSON."`
}

// verifyResult is what a verification found.
type verifyResult struct {
	Tenants  int64            `json:"tenants"`
	Entries  int64            `json:"entries"`
	Findings []ledger.Finding `json:"findings"`
}

// Run verifies and prints every finding, the first bad entry of each tenant.
func (cmd verifyCmd) Run(ctx context.Context, s *streams) error {
	pool, err := cmd.Database.open(ctx)
	if err != nil {
		return errNotVerified{err}
	}
	defer pool.Close()
	result, err := verifyTenants(ctx, pool, cmd.Tenant, s)
	if err != nil {
		return errNotVerified{err}
	}
	if cmd.JSON {
		err = json.NewEncoder(s.Out).Encode(result)
	} else {
		err = result.print(s)
	}
	if err == nil && len(result.Findings) > 0 {
		err = errFindings
	}
	return err
}

func (r *verifyResult) print(s *streams) error {
	for _, f := range r.Findings {
		fmt.Fprintln(s.Out, f)
	}
	if len(r.Findings) > 0 {
		_, err := fmt.Fprintf(s.Out, "findings: %d, in %d tenants with %d entries\n", len(r.Findings), r.Tenants, r.Entries)
		return err
	}
	_, err := fmt.Fprintf(s.Out, "ok: %d tenants, %d entries; chain, numbering, totals, counters, levels and kept answers agree\n",
		r.Tenants, r.Entries)
	return err
}

// verifyTenants verifies one tenant, or all of them if only is "".
func verifyTenants(ctx context.Context, pool *pgxpool.Pool, only string, s *streams) (*verifyResult, error) {
	heads, total, err := headsOf(ctx, pool, only)
	if err != nil {
		return nil, forbidden(err)
	}
	bar := newProgress(s.Err, total, "entries")
	defer bar.finish()
	result := &verifyResult{Findings: []ledger.Finding{}}
	verifier := quota.NewVerifier(catalog.NewStore(pool))
	for _, head := range heads {
		found, err := verifyTenant(ctx, pool, verifier, head.Tenant, func() { bar.add(1) })
		switch {
		case errors.Is(err, ledger.ErrNotFound):
			return nil, fmt.Errorf("there is no tenant %q", head.Tenant)
		case err != nil:
			return nil, forbidden(err)
		}
		result.Tenants++
		result.Entries += found.Entries
		result.Findings = append(result.Findings, found.Findings...)
	}
	if only == "" {
		strays, err := verifier.Strays(ctx, pool)
		if err != nil {
			return nil, err
		}
		result.Findings = append(result.Findings, strays...)
	}
	return result, nil
}

// verifyTenant verifies one tenant in a snapshot of its own, so that a long run holds
// none open for long and every tenant is seen as of one instant.
func verifyTenant(
	ctx context.Context, pool *pgxpool.Pool, verifier *quota.Verifier, tenant string, progress func(),
) (found ledger.Verification, err error) {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error {
		found, err = verifier.Verify(ctx, tx, tenant, progress)
		return err
	})
	return found, err
}

// headsOf lists the tenants to verify and how many entries they say they have.
func headsOf(ctx context.Context, pool *pgxpool.Pool, only string) (heads []ledger.Head, entries int64, err error) {
	if only != "" {
		return []ledger.Head{{Tenant: only}}, -1, nil
	}
	after := ""
	for {
		page, err := ledger.NewStore(pool).Heads(ctx, after, tenantsPage)
		if err != nil {
			return nil, 0, err
		}
		for _, head := range page {
			entries += head.Seq
			after = head.Tenant
		}
		heads = append(heads, page...)
		if len(page) < tenantsPage {
			return heads, entries, nil
		}
	}
}
