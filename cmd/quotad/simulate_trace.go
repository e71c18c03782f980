package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// The columns of a trace that have a meaning of their own; those of a meter's pools
// are called as the pools are.
const (
	columnTime    = "time"
	columnTenant  = "tenant"
	columnSubject = "subject"
	columnMeter   = "meter"
	columnCost    = "cost"
)

// A traceReader reads the requests of a CSV file, one at a time.
type traceReader struct {
	name         string // in errors
	csv          *csv.Reader
	snapshot     *catalog.Snapshot
	defaultMeter string         // of rows that name none; may be ""
	columns      map[string]int // by name; nil until the header is read
	fields       []string       // of the row read last
}

// A traceRow is one request of the past.
type traceRow struct {
	atMicros int64
	request  quota.Request
}

func newTraceReader(from io.Reader, name string, snapshot *catalog.Snapshot, defaultMeter string) *traceReader {
	r := csv.NewReader(from)
	r.ReuseRecord = true
	return &traceReader{name: name, csv: r, snapshot: snapshot, defaultMeter: defaultMeter}
}

// offset is how many bytes have been read.
func (t *traceReader) offset() int64 { return t.csv.InputOffset() }

// next returns the next row, or [io.EOF]. Other errors name line, column and reason.
func (t *traceReader) next() (traceRow, error) {
	if t.columns == nil {
		if err := t.readHeader(); err != nil {
			return traceRow{}, err
		}
	}
	if err := t.readFields(); err != nil {
		return traceRow{}, err
	}
	at, err := time.Parse(time.RFC3339Nano, t.field(columnTime))
	if err != nil {
		return traceRow{}, t.fault(columnTime, "must be an RFC 3339 time such as 2024-05-10T12:00:00.25Z")
	}
	if at.UnixMicro() < 0 {
		return traceRow{}, t.fault(columnTime, "must be 1970 or later")
	}
	charge, err := t.charge()
	if err != nil {
		return traceRow{}, err
	}
	return traceRow{
		atMicros: at.UnixMicro(),
		request: quota.Request{
			Tenant:  t.field(columnTenant),
			Subject: t.field(columnSubject),
			Charges: []quota.Charge{charge},
		},
	}, nil
}

// readHeader learns where each column is.
func (t *traceReader) readHeader() error {
	err := t.readFields()
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s:1:1: must begin with a line of column names", t.name)
	}
	if err != nil {
		return err
	}
	t.columns = make(map[string]int, len(t.fields))
	for i, name := range t.fields {
		if i == 0 {
			name = strings.TrimPrefix(name, "\ufeff")
		}
		if _, twice := t.columns[name]; twice {
			return t.faultAt(i, name, "is there twice")
		}
		t.columns[name] = i
	}
	for _, name := range []string{columnTime, columnTenant} {
		if _, ok := t.columns[name]; !ok {
			return t.fault(name, "is a column that a trace must have")
		}
	}
	return nil
}

func (t *traceReader) readFields() (err error) {
	t.fields, err = t.csv.Read()
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		return fmt.Errorf("%s:%d:%d: %w", t.name, parse.Line, parse.Column, parse.Err)
	}
	return err
}

// field returns a column's value in the row read last, "" if there is none.
func (t *traceReader) field(column string) string {
	if i, ok := t.columns[column]; ok {
		return t.fields[i]
	}
	return ""
}

// charge is the row's meter with its pools or its cost. A row that has neither is one
// unit.
func (t *traceReader) charge() (quota.Charge, error) {
	c := quota.Charge{Meter: t.field(columnMeter), Cost: 1}
	if c.Meter == "" {
		c.Meter = t.defaultMeter
	}
	if c.Meter == "" {
		return c, t.fault(columnMeter, "is required, or a default with --meter: the plan limits several")
	}
	meter := t.snapshot.Meter(c.Meter)
	if meter == nil {
		return c, t.fault(columnMeter, "must be a meter of the configuration, "+c.Meter+" is not")
	}
	var err error
	if c.Pools, err = t.pools(meter); err != nil {
		return c, err
	}
	switch cost := t.field(columnCost); {
	case cost == "":
	case c.Pools != nil:
		return c, t.fault(columnCost, "must be empty where the meter's pools have columns")
	default:
		c.Cost, err = t.amount(columnCost)
	}
	return c, err
}

// pools reads the columns that are called as the meter's pools are; nil if there are
// none. An empty field is 0.
func (t *traceReader) pools(meter *catalog.Meter) (map[string]int64, error) {
	var pools map[string]int64
	for _, pool := range slices.Sorted(maps.Keys(meter.Weights)) {
		if _, ok := t.columns[pool]; !ok || reservedColumn(pool) {
			continue
		}
		if pools == nil {
			pools = make(map[string]int64, len(meter.Weights))
		}
		pools[pool] = 0
		if t.field(pool) == "" {
			continue
		}
		var err error
		if pools[pool], err = t.amount(pool); err != nil {
			return nil, err
		}
	}
	return pools, nil
}

func reservedColumn(name string) bool {
	return slices.Contains([]string{columnTime, columnTenant, columnSubject, columnMeter, columnCost}, name)
}

func (t *traceReader) amount(column string) (int64, error) {
	units, err := strconv.ParseUint(t.field(column), 10, 64)
	if err != nil || units > catalog.UnitsMax {
		return 0, t.fault(column, "must be a whole number from 0 to 999999999999999")
	}
	return int64(units), nil
}

// fault says that a column of the row read last breaks a rule, and where it stands.
func (t *traceReader) fault(column, rule string) error {
	return t.faultAt(t.columns[column], column, rule) // a column that is not there: the row
}

func (t *traceReader) faultAt(field int, column, rule string) error {
	line, position := t.csv.FieldPos(field)
	return fmt.Errorf("%s:%d:%d: %s %s", t.name, line, position, column, rule)
}

// explain turns an error about the request of the row read last into one about the
// row's columns.
func (t *traceReader) explain(err error) error {
	var refused *quota.Error
	if !errors.As(err, &refused) || len(refused.Faults) == 0 {
		return t.fault("row", err.Error())
	}
	var faults []error
	for _, f := range refused.Faults {
		faults = append(faults, t.fault(strings.TrimPrefix(f.Field, "pools."), f.Rule))
	}
	return errors.Join(faults...)
}
