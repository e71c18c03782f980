package main

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/pg"
	"github.com/quotad/quotad/migrations"
)

// migrateCmd brings the schema to the newest version and makes the login that serves.
// It needs a login that may create a schema and roles; serve must not have one.
type migrateCmd struct {
	Database        databaseFlags `embed:""`
	ServiceLogin    string        `name:"service-login" env:"QUOTAD_SERVICE_LOGIN" placeholder:"NAME" help:"Also create or update this login for quotad serve, a member of quotad_service; its password comes from QUOTAD_SERVICE_PASSWORD."`
	ServicePassword string        `name:"service-password" env:"QUOTAD_SERVICE_PASSWORD" hidden:"" help:"Set it in the environment: an argument is visible to every process of the machine."`
	JSON            bool          `name:"json" help:"Print the result as JSON."`
}

// migrateResult is what a migration did.
type migrateResult struct {
	Applied         []string        `json:"applied"`
	Version         int64           `json:"version"`
	ServiceLogin    string          `json:"service_login,omitempty"`
	ServicePassword passwordOutcome `json:"service_password,omitempty"`
}

// passwordOutcome is what became of the service login's password.
type passwordOutcome string

const (
	passwordSet  passwordOutcome = "set"
	passwordKept passwordOutcome = "kept" // none was given, and the login was there
	passwordNone passwordOutcome = "none" // none was given, and the login is new
)

// Run migrates and says what was done.
func (cmd migrateCmd) Run(ctx context.Context, s *streams) error {
	config, err := cmd.Database.connConfig()
	if err != nil {
		return err
	}
	if cmd.ServicePassword != "" && cmd.ServiceLogin == "" {
		return errors.New("migrate: a service password needs --service-login")
	}
	result, err := migrateDatabase(ctx, config)
	if err != nil {
		return err
	}
	if cmd.ServiceLogin != "" {
		created, err := ensureServiceLogin(ctx, config, cmd.ServiceLogin, cmd.ServicePassword)
		if err != nil {
			return err
		}
		result.ServiceLogin, result.ServicePassword = cmd.ServiceLogin, passwordKept
		switch {
		case cmd.ServicePassword != "":
			result.ServicePassword = passwordSet
		case created:
			result.ServicePassword = passwordNone
		}
	}
	return result.print(s.Out, cmd.JSON)
}

func (r migrateResult) print(to io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(to).Encode(r)
	}
	var b strings.Builder
	for _, name := range r.Applied {
		fmt.Fprintln(&b, "applied", name)
	}
	fmt.Fprintln(&b, "schema is at version", r.Version)
	if r.ServiceLogin != "" {
		fmt.Fprintf(&b, "login %s may serve; %s\n", r.ServiceLogin, map[passwordOutcome]string{
			passwordSet:  "its password is set",
			passwordKept: "its password is as it was",
			passwordNone: "it has no password: set QUOTAD_SERVICE_PASSWORD and run this again, unless the server lets it in by other means",
		}[r.ServicePassword])
	}
	_, err := io.WriteString(to, b.String())
	return err
}

// migrateDatabase applies what is missing.
func migrateDatabase(ctx context.Context, config *pgx.ConnConfig) (migrateResult, error) {
	result := migrateResult{Applied: []string{}}
	if err := requireDirect(ctx, config); err != nil {
		return result, fmt.Errorf("migrate: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return result, fmt.Errorf("migrate: %w", unreachable(config, err))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	version, head, err := schemaVersion(ctx, conn)
	if err == nil {
		err = refuseNewerSchema(version, head)
	}
	if err != nil {
		return result, fmt.Errorf("migrate: %w", err)
	}
	applied, err := migrations.Up(ctx, config)
	if err != nil {
		return result, err
	}
	for _, m := range applied {
		result.Applied = append(result.Applied, m.Name)
	}
	result.Version = head
	return result, nil
}

// directRounds is how often two connections are asked for their sessions. Where a pooler
// hands its sessions round, the second look may show what the first did not.
const directRounds = 3

// requireDirect refuses a pooler in transaction mode: the lock that keeps migrations
// apart belongs to a session, and would be taken in one and left behind there. Two
// connections that are open at once never have the same session, unless one is lent to
// both in turn.
func requireDirect(ctx context.Context, config *pgx.ConnConfig) error {
	ctx, cancel := context.WithTimeout(ctx, connectMax)
	defer cancel()
	var conns [2]*pgx.Conn
	for i := range conns {
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			return unreachable(config, err)
		}
		defer conn.Close(context.WithoutCancel(ctx))
		conns[i] = conn
	}
	var seen [2]map[int]bool
	for range directRounds {
		for i, conn := range conns {
			var pid int
			err := conn.QueryRow(ctx, "select pg_catalog.pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid)
			if err != nil {
				return err
			}
			if seen[1-i][pid] {
				return errors.New("this is a pooler in transaction mode, where a session's lock does not hold: connect to PostgreSQL itself")
			}
			if seen[i] == nil {
				seen[i] = make(map[int]bool)
			}
			seen[i][pid] = true
		}
	}
	return nil
}

// loginNameBytesMax is PostgreSQL's own; it would cut a longer name in silence.
const loginNameBytesMax = 63

// ensureServiceLogin makes login a role that can log in and do what quotad_service
// may, and sets its password if one is given. It is safe to repeat; created is true the
// first time.
func ensureServiceLogin(ctx context.Context, config *pgx.ConnConfig, login, password string) (created bool, err error) {
	if login == "" || len(login) > loginNameBytesMax || login == "quotad_service" || login == config.User {
		return false, fmt.Errorf("migrate: --service-login must be a login of its own, of at most %d bytes, not %q", loginNameBytesMax, login)
	}
	verifier := ""
	if password != "" {
		if verifier, err = scramVerifier(password, rand.Reader); err != nil {
			return false, fmt.Errorf("migrate: QUOTAD_SERVICE_PASSWORD: %w", err)
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, fmt.Errorf("migrate: %w", unreachable(config, err))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for range serviceLoginTries {
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
			created, err = writeServiceLogin(ctx, tx, login, verifier)
			return err
		})
		if !roleRaced(err) {
			break
		}
	}
	if err != nil {
		return false, fmt.Errorf("migrate: service login %s: %w", login, err)
	}
	return created, nil
}

// serviceLoginTries is how often the login is written when migrations of other databases
// of the server write it at the same time: roles are the server's, and no lock of a
// database keeps these apart. One of those who meet gets through.
const serviceLoginTries = 20

// roleRaced reports whether err is that someone else has just changed or made the role.
func roleRaced(err error) bool {
	switch pg.Code(err) {
	case "XX000", "23505", "42710": // tuple concurrently updated, unique violation, duplicate object
		return true
	}
	return false
}

// A login that is told apart from its owner is the point of this: one that could
// change the ledger must not become a service login by a slip.
const loginFactsSQL = `
select exists (select from pg_catalog.pg_roles where rolname = $1),
       exists (select from pg_catalog.pg_roles where rolname = $1 and (rolsuper or rolbypassrls or rolcreaterole)),
       exists (
         select from pg_catalog.pg_namespace n
         join pg_catalog.pg_roles r on r.oid = n.nspowner
         where n.nspname = 'quotad' and r.rolname = $1)`

// Migrations of one database take turns; two that change one role at once would fail. The
// key is of quotad's migrations alone.
const serviceLoginTurnSQL = `select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('quotad service login', 0))`

// writeServiceLogin runs in one transaction. Utility statements take no parameters, so
// the name is quoted as an identifier and the password goes as a verifier, whose
// alphabet needs no quoting: no server log, and no statistics view, ever holds the
// password. The login's settings hold however it connects, through a pooler too.
func writeServiceLogin(ctx context.Context, tx pgx.Tx, login, verifier string) (created bool, err error) {
	if _, err := tx.Exec(ctx, serviceLoginTurnSQL); err != nil {
		return false, err
	}
	var exists, mighty, owner bool
	if err := tx.QueryRow(ctx, loginFactsSQL, login).Scan(&exists, &mighty, &owner); err != nil {
		return false, err
	}
	if mighty || owner {
		return false, errors.New("it is a superuser, may create roles, or owns the schema; choose another name")
	}
	name := pgx.Identifier{login}.Sanitize()
	var statements []string
	if !exists {
		statements = append(statements, "create role "+name)
	}
	statements = append(statements, "grant quotad_service to "+name)
	for _, setting := range pg.LoginSettings() {
		statements = append(statements, fmt.Sprintf("alter role %s set %s = '%s'", name, setting.Name, setting.Value))
	}
	attributes := "alter role " + name + " login inherit"
	if verifier != "" {
		attributes += " password '" + verifier + "'"
	}
	for _, sql := range append(statements, attributes) {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return false, err
		}
	}
	return !exists, nil
}

const (
	scramIterations = 4096 // PostgreSQL's own
	scramSaltBytes  = 16
)

// scramVerifier is what PostgreSQL stores of a password (RFC 5802, RFC 7677), as
// psql's \password computes it.
func scramVerifier(password string, random io.Reader) (string, error) {
	for _, r := range password {
		if r < ' ' || r > '~' {
			return "", errors.New("must be printable ASCII") // others are normalized before they are hashed
		}
	}
	salt := make([]byte, scramSaltBytes)
	if _, err := io.ReadFull(random, salt); err != nil {
		return "", err
	}
	salted, err := pbkdf2.Key(sha256.New, password, salt, scramIterations, sha256.Size)
	if err != nil {
		return "", err
	}
	mac := func(text string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	stored := sha256.Sum256(mac("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s",
		scramIterations, encode(salt), encode(stored[:]), encode(mac("Server Key"))), nil
}
