package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/quotad/quotad/internal/catalog"
)

// keyCmd makes, lists and revokes API keys; the first admin key comes from here.
type keyCmd struct {
	Create keyCreateCmd `cmd:"" help:"Make an API key and print it once."`
	List   keyListCmd   `cmd:"" help:"List API keys, revoked ones too."`
	Revoke keyRevokeCmd `cmd:"" help:"Revoke an API key; every instance refuses it within 5 seconds."`
}

type keyCreateCmd struct {
	Database databaseFlags      `embed:""`
	Scopes   []catalog.KeyScope `name:"scope" required:"" sep:"," placeholder:"SCOPE" help:"What it may do: decide, read, audit, admin (which is all of them); several with commas."`
	Tenant   string             `name:"tenant" help:"The one tenant it may act for; every tenant if absent."`
	Name     string             `name:"name" help:"What it is for, for people."`
	Env      string             `name:"env" default:"live" help:"The word after qk_ in the key, such as live, test or dev."`
	JSON     bool               `name:"json" help:"Print the key and what is known of it as JSON."`
}

// createdKey is a new key with its token, the only time that it is shown.
type createdKey struct {
	Token string `json:"key"`
	catalog.Key
}

// Run prints the key alone to standard output, so that a script can take it from
// there, and what to know about it to standard error.
func (cmd keyCreateCmd) Run(ctx context.Context, s *streams) error {
	pool, err := cmd.Database.open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	key, token, err := catalog.NewStore(pool).CreateKey(ctx, cliActor(), catalog.KeySpec{
		Env: cmd.Env, Name: cmd.Name, Scopes: cmd.Scopes, Tenant: cmd.Tenant,
	})
	if err != nil {
		return faultsOf(forbidden(err), s.Err)
	}
	if cmd.JSON {
		return json.NewEncoder(s.Out).Encode(createdKey{token, key})
	}
	if _, err := fmt.Fprintln(s.Out, token); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.Err, "This key is not shown again. It may %s for %s; `quotad key revoke %s` ends it.\n",
		joinScopes(key.Scopes), tenantOrAll(key.Tenant), key.ID)
	return err
}

type keyListCmd struct {
	Database databaseFlags `embed:""`
	JSON     bool          `name:"json" help:"Print one JSON object a line."`
}

// Run lists every key, page by page.
func (cmd keyListCmd) Run(ctx context.Context, s *streams) error {
	pool, err := cmd.Database.open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	store := catalog.NewStore(pool)
	print, flush := keyPrinter(s.Out, cmd.JSON)
	query := catalog.KeyQuery{Page: catalog.Page{Limit: catalog.PageItemsMax}}
	for {
		keys, next, err := store.Keys(ctx, query)
		if err != nil {
			return forbidden(err)
		}
		for _, key := range keys {
			if err := print(key); err != nil {
				return err
			}
		}
		if next == "" {
			return flush()
		}
		query.After = next
	}
}

// keyPrinter returns how to print one key, and what to do after the last.
func keyPrinter(to io.Writer, asJSON bool) (print func(catalog.Key) error, flush func() error) {
	if asJSON {
		encoder := json.NewEncoder(to)
		return func(k catalog.Key) error { return encoder.Encode(k) }, func() error { return nil }
	}
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tENV\tSCOPES\tTENANT\tNAME\tCREATED\tREVOKED")
	return func(k catalog.Key) error {
		revoked := ""
		if k.RevokedAt != nil {
			revoked = k.RevokedAt.Format(time.RFC3339)
		}
		_, err := fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Env, joinScopes(k.Scopes),
			tenantOrAll(k.Tenant), k.Name, k.CreatedAt.Format(time.RFC3339), revoked)
		return err
	}, table.Flush
}

type keyRevokeCmd struct {
	Database databaseFlags `embed:""`
	ID       string        `arg:"" help:"The key's id, the third part of qk_<env>_<id>_<secret>."`
}

// Run revokes the key. A whole key is not taken in place of its id: it would be in the
// shell's history, which is where a leak starts.
func (cmd keyRevokeCmd) Run(ctx context.Context, s *streams) error {
	if _, whole := catalog.ParseToken(cmd.ID); whole {
		return errors.New("give the key's id alone, the third part of qk_<env>_<id>_<secret>")
	}
	pool, err := cmd.Database.open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	key, err := catalog.NewStore(pool).RevokeKey(ctx, cliActor(), cmd.ID)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		return fmt.Errorf("there is no key %q; `quotad key list` shows them", cmd.ID)
	case err != nil:
		return forbidden(err)
	}
	_, err = fmt.Fprintf(s.Out, "%s was revoked at %s by %s; every instance refuses it within %v\n",
		key.ID, key.RevokedAt.Format(time.RFC3339), key.RevokedBy, catalog.RevocationMax)
	return err
}

func joinScopes(scopes []catalog.KeyScope) string {
	words := make([]string, len(scopes))
	for i, scope := range scopes {
		words[i] = string(scope)
	}
	return strings.Join(words, ",")
}

func tenantOrAll(tenant string) string {
	if tenant == "" {
		return "every tenant"
	}
	return shownName(tenant)
}
