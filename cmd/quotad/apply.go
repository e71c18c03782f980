package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"text/tabwriter"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// applyCmd makes the database agree with a file of meters, plans, tenants and settings.
type applyCmd struct {
	Database databaseFlags `embed:""`
	File     string        `name:"file" short:"f" required:"" placeholder:"FILE" help:"The YAML or JSON file; - is standard input."`
	Prune    bool          `name:"prune" help:"Remove the meters, plans and settings that the file does not name. Tenants are never removed."`
	DryRun   bool          `name:"dry-run" help:"Say what would change, and change nothing."`
	JSON     bool          `name:"json" help:"Print the changes as JSON."`
}

// Run applies the file in one transaction and says what it changed. A file with faults
// changes nothing; each fault is a line of its own, as compilers write them.
func (cmd applyCmd) Run(ctx context.Context, s *streams) error {
	config, err := readConfigFile(cmd.File, os.Stdin)
	if err != nil {
		return faultsOf(err, s.Err)
	}
	pool, err := cmd.Database.open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	store := catalog.NewStore(pool)
	previewer := quota.NewPreviewer(store)
	if cmd.DryRun {
		store = store.DryRun(previewer.Look)
	}
	changes, err := store.Apply(ctx, cliActor(), config, catalog.ApplyOptions{Prune: cmd.Prune})
	if err != nil {
		return faultsOf(forbidden(err), s.Err)
	}
	if cmd.JSON {
		return json.NewEncoder(s.Out).Encode(appliedJSON{changes, previewer.Preview()})
	}
	if err := printChanges(s.Out, changes); err != nil {
		return err
	}
	return printPreview(s.Out, previewer.Preview())
}

// appliedJSON is what apply prints for programs.
type appliedJSON struct {
	catalog.Changes
	Preview *quota.Preview `json:"preview,omitempty"` // of a dry run that would change something
}

// readConfigFile reads a configuration from a file, or from stdin if name is "-".
func readConfigFile(name string, stdin io.Reader) (*catalog.Config, error) {
	if name == "-" {
		name = "stdin"
	} else {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		stdin = file
	}
	data, err := io.ReadAll(io.LimitReader(stdin, catalog.FileBytesMax+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return catalog.ParseFile(data, name)
}

// faultsOf prints the faults that err joins, a line each, and returns what they mean;
// another error is returned as it is.
func faultsOf(err error, to io.Writer) error {
	if len(catalog.Faults(err)) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(to, err); err != nil {
		return err
	}
	return errors.New("nothing was changed")
}

// cliActor is who changes the configuration from a shell.
func cliActor() string {
	if u, err := user.Current(); err == nil {
		return "cli:" + u.Username
	}
	return "cli"
}

// outcomeMarks is how a line of a change begins.
var outcomeMarks = map[catalog.Outcome]string{catalog.Created: "+", catalog.Changed: "~", catalog.Removed: "-"}

func printChanges(to io.Writer, changes catalog.Changes) error {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, c := range changes.Items {
		if c.Outcome == catalog.Unchanged {
			continue
		}
		details := c.Differs
		if len(details) == 0 {
			details = []string{""}
		}
		fmt.Fprintf(table, "%s %s\t%s\t%s\n", outcomeMarks[c.Outcome], c.Object, shownName(c.Name), details[0])
		for _, detail := range details[1:] {
			fmt.Fprintf(table, "\t\t%s\n", detail)
		}
	}
	var counts []string
	for _, outcome := range []catalog.Outcome{catalog.Created, catalog.Changed, catalog.Removed, catalog.Unchanged} {
		if n := changes.Count(outcome); n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, outcome))
		}
	}
	after := fmt.Sprintf("the configuration is at version %d", changes.Version)
	if changes.DryRun {
		after = "this was a dry run: nothing was changed"
	}
	fmt.Fprintf(table, "%s; %s\n", strings.Join(counts, ", "), after)
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(to, trimLines(text.String()))
	return err
}

// shownName quotes a name that would break a line's columns.
func shownName(name string) string {
	if strings.ContainsAny(name, " \"") {
		return fmt.Sprintf("%q", name)
	}
	return name
}
