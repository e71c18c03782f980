package pgtest

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A Querier runs a query: a connection, a session or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// A PlanNode is one step of a plan as EXPLAIN prints it, after it has run.
type PlanNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	Index    string     `json:"Index Name"`
	Cond     string     `json:"Index Cond"`
	Filter   string     `json:"Filter"`
	Loops    float64    `json:"Actual Loops"`
	Rows     float64    `json:"Actual Rows"` // per loop, a mean of them since PostgreSQL 18
	Dropped  float64    `json:"Rows Removed by Filter"`
	Hit      int64      `json:"Shared Hit Blocks"`
	Read     int64      `json:"Shared Read Blocks"`
	Plans    []PlanNode `json:"Plans"`
}

// All returns the node and everything below it.
func (n PlanNode) All() []PlanNode {
	nodes := []PlanNode{n}
	for _, child := range n.Plans {
		nodes = append(nodes, child.All()...)
	}
	return nodes
}

// Buffers is how many pages the node and everything below it read.
func (n PlanNode) Buffers() int64 { return n.Hit + n.Read }

// String is the tree, for messages.
func (n PlanNode) String() string {
	text, _ := json.MarshalIndent(n, "", " ")
	return string(text)
}

// Explain returns the plan of a statement in session, run with literal arguments and
// rolled back: the plan that a prepared one has there.
func Explain(t testing.TB, session Querier, sql string, literals ...string) PlanNode {
	t.Helper()
	RunSQL(t, session, "prepare explained as "+sql)
	defer RunSQL(t, session, "deallocate explained")
	return ExplainPrepared(t, session, "explained", literals...)
}

// ExplainPrepared is Explain of a statement that is prepared under a name.
func ExplainPrepared(t testing.TB, session Querier, name string, literals ...string) PlanNode {
	t.Helper()
	RunSQL(t, session, "begin")
	defer RunSQL(t, session, "rollback")
	text := RunSQL(t, session, "explain (analyze, buffers, format json) execute "+name+"("+strings.Join(literals, ", ")+")")
	var plans []struct{ Plan PlanNode }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan
}

// RunSQL runs one statement in session and returns the text it ends in, if any.
func RunSQL(t testing.TB, session Querier, sql string) (text string) {
	t.Helper()
	rows, err := session.Query(t.Context(), sql, pgx.QueryExecModeExec)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}
