package pg

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A Setting is a parameter of PostgreSQL and the value that decisions rely on, as
// current_setting gives it.
type Setting struct{ Name, Value string }

// loginSettings are what any session of an instance may have, reads included. A vanished
// instance must not hold a tenant's lock for ever. There is deliberately no
// statement_timeout: it can interrupt a commit that waits for a standby, and so
// acknowledge what no standby has.
func loginSettings() []Setting {
	return []Setting{
		{"TimeZone", "UTC"},
		{"default_transaction_isolation", "read committed"},
		{"lock_timeout", "1s"},
		{"idle_in_transaction_session_timeout", "10s"},
	}
}

// planSettings are for decisions alone. Hot statements are planned once, and each of
// their rows is one descent of an index: a plan made while tables were small must not
// scan them later. Reading pages of a ledger and verifying it need the opposite, plans
// for the very tenant, so these never go on the login.
func planSettings() []Setting {
	return []Setting{
		{"plan_cache_mode", "force_generic_plan"},
		{"enable_seqscan", "off"},
		{"enable_hashjoin", "off"},
		{"enable_mergejoin", "off"},
		{"jit", "off"},
	}
}

// LoginSettings lists what the login of an instance needs where a pooler hands sessions
// from client to client: a client cannot set them when it connects.
func LoginSettings() []Setting { return loginSettings() }

// SessionSettings lists what a [Session] has that reaches PostgreSQL itself.
func SessionSettings() []Setting { return append(loginSettings(), planSettings()...) }

// WithoutSettings returns a copy of config that asks for no setting of a [Session], so
// that the login's hold. PostgreSQL takes names in any case, and so does this: of two
// spellings that are both sent either may win.
func WithoutSettings(config *pgx.ConnConfig) *pgx.ConnConfig {
	config = config.Copy()
	maps.DeleteFunc(config.RuntimeParams, func(name, _ string) bool {
		return slices.ContainsFunc(SessionSettings(), func(s Setting) bool { return strings.EqualFold(s.Name, name) })
	})
	return config
}

// WithSettings returns a copy of config whose connections start with the settings of a
// [Session], whatever config asks for. PostgreSQL applies them after `options`.
func WithSettings(config *pgx.ConnConfig) *pgx.ConnConfig {
	config = WithoutSettings(config)
	for _, s := range SessionSettings() {
		config.RuntimeParams[s.Name] = s.Value
	}
	return config
}

// localPlanSQL sets the plan settings until the transaction ends, which is as long as
// a pooler leaves a session to a client.
func localPlanSQL() string {
	var calls []string
	for _, s := range planSettings() {
		calls = append(calls, fmt.Sprintf("pg_catalog.set_config('%s', '%s', true)", s.Name, s.Value))
	}
	return "select " + strings.Join(calls, ", ")
}

// Differing returns the first of settings that conn does not have, with the value it has
// instead; ok is true if there is none.
func Differing(ctx context.Context, conn *pgx.Conn, settings []Setting) (wanted Setting, got string, ok bool, err error) {
	for _, s := range settings {
		err := conn.QueryRow(ctx, "select pg_catalog.current_setting($1)", pgx.QueryExecModeExec, s.Name).Scan(&got)
		if err != nil {
			return s, "", false, fmt.Errorf("read setting %s: %w", s.Name, err)
		}
		if got != s.Value {
			return s, got, false, nil
		}
	}
	return Setting{}, "", true, nil
}
