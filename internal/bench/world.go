package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/loadgen"
)

const (
	quotadPackage = "github.com/quotad/quotad/cmd/quotad"
	serviceLogin  = "quotad_bench"
	instances     = 3
	// answerBytesMax is far beyond an answer to one request.
	answerBytesMax = 16 << 10
)

// part is what not every subject needs.
type part int

const (
	needsPlain     part = 1 << iota // the chi handler
	needsExhausted                  // a tenant that has nothing left
	needsEngine                     // a database for engines in process
	needsMore                       // a database for several instances, and these
	needsOther                      // a database for transactions
	needsLarge                      // one with many entries and one with none, and their servers
)

// A world is everything that runs while measuring. close must be called.
type world struct {
	dir        string
	program    string // quotad
	postgres   *devpg.Server
	quotad     book // of serve, as the next ones are of one subject each
	engine     book // of engines in process
	other      book // of the transactions
	more       book // of serveMore
	large      book // of serveLarge
	empty      book // of serveEmpty
	serve      *server
	serveMore  []*server
	serveLarge *server
	serveEmpty *server
	plain      *server
	token      string
	needs      part
}

// newWorld builds quotad, starts a server, and brings two databases to the same state.
func newWorld(ctx context.Context, c *runCmd, needs part, note func(string)) (_ *world, err error) {
	w := &world{program: c.Binary, needs: needs}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close(context.WithoutCancel(ctx)))
		}
	}()
	if w.dir, err = makeDir(c.Dir); err != nil {
		return nil, err
	}
	if w.program == "" {
		note("building quotad")
		w.program = filepath.Join(w.dir, "quotad")
		if _, err := output(ctx, nil, "go", "build", "-o", w.program, quotadPackage); err != nil {
			return nil, err
		}
	}
	settings := map[string]string{"max_connections": "300"} // six services, and 64 sessions beside them
	if c.Full {
		settings["checkpoint_timeout"] = "30s" // the least that there is
	}
	note("starting PostgreSQL")
	w.postgres, err = devpg.Start(ctx, devpg.Options{Dir: filepath.Join(w.dir, "pg"), Fsync: true, Settings: settings})
	if err != nil {
		return nil, err
	}
	if err := w.fill(ctx, c, note); err != nil {
		return nil, err
	}
	return w, w.listen(ctx)
}

// makeDir makes a directory for the data, not in memory, that the database's user can
// enter.
func makeDir(parent string) (string, error) {
	candidates := []string{parent}
	if parent == "" {
		candidates = []string{os.TempDir(), "/var/tmp"} // the second outlives a reboot, so it is on disk
	}
	for _, candidate := range candidates {
		memory, err := inMemory(candidate)
		if err != nil || memory {
			continue
		}
		dir, err := os.MkdirTemp(candidate, "quotad-bench-")
		if err != nil {
			return "", err
		}
		return dir, os.Chmod(dir, 0o711)
	}
	return "", fmt.Errorf("no directory on a disk in %s: give one with --dir", strings.Join(candidates, ", "))
}

// fill makes the databases: quotad's by its own commands, the others as copies of it.
func (w *world) fill(ctx context.Context, c *runCmd, note func(string)) error {
	admin, err := pgx.Connect(ctx, w.postgres.URL("postgres"))
	if err != nil {
		return err
	}
	defer admin.Close(context.WithoutCancel(ctx))
	if _, err := admin.Exec(ctx, "create database quotad"); err != nil {
		return err
	}
	if err := w.configure(ctx, c, note); err != nil {
		return err
	}
	others := map[string]*book{}
	if w.needs&needsEngine != 0 {
		others["engine"] = &w.engine
	}
	if w.needs&needsMore != 0 {
		others["more"] = &w.more
	}
	if w.needs&needsOther != 0 {
		others["transactions"] = &w.other
	}
	if w.needs&needsLarge != 0 {
		others["large"], others["empty"] = &w.large, &w.empty
	}
	for database := range others {
		if _, err := admin.Exec(ctx, "create database "+database+" template quotad"); err != nil {
			return err
		}
	}
	others["quotad"] = &w.quotad
	for database, b := range others {
		if *b, err = w.openBook(ctx, database); err != nil {
			return err
		}
	}
	if w.large.admin != nil {
		if err := w.large.seed(ctx, c, note); err != nil {
			return err
		}
	}
	if w.other.admin == nil {
		return nil
	}
	for _, sql := range []string{createBareCommitSQL, grantBareCommitSQL} {
		if _, err := w.other.admin.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// configure brings quotad's database to where a key may decide for every tenant.
func (w *world) configure(ctx context.Context, c *runCmd, note func(string)) error {
	note(fmt.Sprintf("making %s tenants", grouped(float64(c.Tenants))))
	owner := w.postgres.URL("quotad")
	if _, err := output(ctx, nil, w.program, "migrate", "--database-url", owner, "--service-login", serviceLogin); err != nil {
		return err
	}
	for _, config := range []string{
		configuration(planName, limitUnits, tenantNames(c.Tenants)),
		configuration(planName, limitUnits, []string{hotTenant, idleTenant}),
		configuration(exhaustedTenant, callUnits, []string{exhaustedTenant}),
	} {
		config := strings.NewReader(config)
		if _, err := output(ctx, config, w.program, "apply", "--database-url", owner, "-f", "-"); err != nil {
			return err
		}
	}
	token, err := output(ctx, nil, w.program, "key", "create", "--database-url", owner, "--scope", "decide")
	if err != nil {
		return err
	}
	w.token = string(bytes.TrimSpace(token))
	return nil
}

func (w *world) openBook(ctx context.Context, database string) (b book, err error) {
	b.OwnerURL = w.postgres.URL(database)
	service, err := url.Parse(b.OwnerURL)
	if err != nil {
		return b, err
	}
	service.User = url.User(serviceLogin)
	b.URL = service.String()
	if b.admin, err = pgx.Connect(ctx, b.OwnerURL); err != nil {
		return b, err
	}
	_, err = b.admin.Exec(ctx, walInspectSQL)
	return b, err
}

// listen starts quotad, and what else is needed: several on databases of their own, and
// the plain handler with an answer of the first.
func (w *world) listen(ctx context.Context) (err error) {
	if w.serve, err = w.startQuotad(ctx, &w.quotad); err != nil {
		return err
	}
	if w.needs&needsLarge != 0 {
		if w.serveLarge, err = w.startQuotad(ctx, &w.large); err != nil {
			return err
		}
		if w.serveEmpty, err = w.startQuotad(ctx, &w.empty); err != nil {
			return err
		}
	}
	for w.needs&needsMore != 0 && len(w.serveMore) < instances {
		more, err := w.startQuotad(ctx, &w.more)
		if err != nil {
			return err
		}
		w.serveMore = append(w.serveMore, more)
	}
	if w.needs&needsExhausted != 0 {
		if _, err := w.ask(ctx, exhaustedTenant); err != nil {
			return err
		}
	}
	if w.needs&needsPlain == 0 {
		return nil
	}
	answer, err := w.ask(ctx, tenantNames(1)[0])
	if err != nil {
		return err
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	w.plain, err = startServer(ctx, text, program, "plain")
	return err
}

func (w *world) startQuotad(ctx context.Context, b *book) (*server, error) {
	return startServer(ctx, nil, w.program, "serve", "--database-url", b.URL, "--listen", "127.0.0.1:0")
}

// ask returns a real answer of quotad, which allows what is asked.
func (w *world) ask(ctx context.Context, tenant string) (answer plainSpec, err error) {
	body := strings.NewReader(callBody(tenant, false))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.serve.URL+"/v1/consume", body)
	if err != nil {
		return answer, err
	}
	r.Header.Set("Authorization", "Bearer "+w.token)
	client := http.Client{Timeout: loadgen.AnswerMax}
	defer client.CloseIdleConnections()
	response, err := client.Do(r)
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	answer.Header = response.Header
	answer.Body, err = io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("quotad answers %s: %s", response.Status, answer.Body)
	}
	w.quotad.entries++
	return answer, err
}

// checkpoint flushes what earlier rounds left.
func (w *world) checkpoint(ctx context.Context) error {
	_, err := w.quotad.admin.Exec(ctx, checkpointSQL)
	return err
}

// books are all of them, also those that there is no need for.
func (w *world) books() []*book {
	return []*book{&w.quotad, &w.engine, &w.other, &w.more, &w.large, &w.empty}
}

// verify has quotad prove every ledger.
func (w *world) verify(ctx context.Context) error {
	for _, b := range w.books() {
		if b.admin == nil {
			continue
		}
		if _, err := output(ctx, nil, w.program, "verify", "--database-url", b.OwnerURL); err != nil {
			return err
		}
	}
	return nil
}

// close ends whatever runs, in the reverse order, and removes the data.
func (w *world) close(ctx context.Context) error {
	var errs []error
	for _, s := range append(w.serveMore, w.serve, w.serveLarge, w.serveEmpty, w.plain) {
		if s != nil {
			errs = append(errs, s.stop())
		}
	}
	for _, b := range w.books() {
		if b.admin != nil {
			errs = append(errs, b.admin.Close(ctx))
		}
	}
	if w.postgres != nil {
		errs = append(errs, w.postgres.Stop())
	}
	if w.dir != "" {
		errs = append(errs, os.RemoveAll(w.dir))
	}
	return errors.Join(errs...)
}
