package catalog

import (
	"time"

	"github.com/quotad/quotad/internal/calendar"
)

// UnitsMax is the largest amount of units anywhere: 15 digits are safe in JSON
// numbers and in structured header fields.
const UnitsMax = 999_999_999_999_999

// A Meter is what is counted.
type Meter struct {
	ID      int32             // identity in the database; 0 in a config file
	Name    string            // [a-z0-9][a-z0-9._-]{0,63}
	Unit    string            // "call", "token"
	Weights map[string]Weight // by pool; empty when the meter has no pools

	OnExpiry Expiry // what becomes of a hold that nobody resolves in time
}

// An Expiry says what becomes of a hold that expires.
type Expiry string

const (
	ExpiryRelease Expiry = "release" // what it had set aside comes back
	ExpiryCharge  Expiry = "charge"  // all of it is used
)

// A Weight is what one unit of a pool costs, in millionths of the meter's unit.
// In files and JSON it is a number or a quoted decimal with at most 6 decimals.
type Weight int64

// WeightOne is the weight 1.
const WeightOne Weight = 1_000_000

// An Algorithm names the rule a limit counts by.
type Algorithm string

// The algorithms. Their text form is stable: it is stored and sent.
const (
	SlidingLog     Algorithm = "sliding_log"
	SlidingCounter Algorithm = "sliding_counter"
	FixedWindow    Algorithm = "fixed_window"
	TokenBucket    Algorithm = "token_bucket"
	GCRA           Algorithm = "gcra"
	LeakyBucket    Algorithm = "leaky_bucket"
	Concurrency    Algorithm = "concurrency"
)

// KeepsLevel reports whether a limit of this algorithm keeps a level of its own;
// the others are computed from the ledger's running totals.
func (a Algorithm) KeepsLevel() bool {
	return a == TokenBucket || a == GCRA || a == LeakyBucket
}

// CountsHolds reports whether open holds stand against a limit of this algorithm. A leaky
// bucket hands out departures, which cannot be set aside: it only takes consume.
func (a Algorithm) CountsHolds() bool { return a != LeakyBucket }

// A Scope says whose usage a limit counts.
type Scope string

const (
	ScopeTenant  Scope = "tenant"  // all of the tenant's usage
	ScopeSubject Scope = "subject" // each subject's usage apart
)

// A Mode says what a limit that is used up does.
type Mode string

const (
	ModeEnforce Mode = "enforce" // denies
	ModeShadow  Mode = "shadow"  // counts and reports would_deny, never denies
	ModeOff     Mode = "off"     // is not looked at
)

// An OnError says what a limit does with a request to consume when the database is away.
type OnError string

const (
	OnErrorDeny  OnError = "deny"  // grants nothing
	OnErrorAllow OnError = "allow" // grants everything
	OnErrorLocal OnError = "local" // grants what a copy in each instance has room for
)

// A Window is the span a windowed limit counts over: a duration, or a calendar
// word in the tenant's time zone (fixed_window only). Exactly one is set; the zero
// value means the limit has no window.
type Window struct {
	DurationMicros int64
	Calendar       Calendar
}

// A Calendar is a word for a window that follows the calendar.
type Calendar = calendar.Word

// The words of windows.
const (
	CalendarHour  = calendar.Hour
	CalendarDay   = calendar.Day
	CalendarWeek  = calendar.Week // starts on Monday
	CalendarMonth = calendar.Month
	CalendarYear  = calendar.Year
)

// A Rate is units per duration. The zero value means the limit has no rate; a rate
// of 0 units blocks.
type Rate struct {
	Units     int64
	PerMicros int64
}

// A Limit is one rule on one meter, with numbers already validated. Which fields an
// algorithm uses is fixed: limit and window by the windowed ones, capacity and
// refill by token_bucket, rate and burst by gcra, rate and queue by leaky_bucket, limit
// by concurrency.
type Limit struct {
	Name      string
	Meter     string
	Algorithm Algorithm
	Limit     int64 // units; 0 blocks
	Unlimited bool  // counts and reports, never denies; then Limit is 0
	Window    Window
	Capacity  int64 // units
	Refill    Rate
	Rate      Rate
	Burst     int64 // units
	Queue     int64 // units
	Scope     Scope
	Mode      Mode

	// OnError is what it does when the database is away, "" for OnErrorDeny. LocalShare is
	// the percentage of its numbers that one instance may then grant by itself: 1 to 100
	// for OnErrorLocal, else 0.
	OnError    OnError
	LocalShare int64

	// Since is the version of the plan that introduced this limit with this
	// algorithm, meter and scope. A level kept under another one starts full.
	Since int32

	// Override is what a tenant has other numbers by for now; nil for the plan's own.
	Override *Override
}

// A Plan is one immutable version of a named set of limits.
type Plan struct {
	Name      string
	Version   int32
	VersionID int64 // unique over all plans; entries refer to it
	Limits    []Limit

	// SpecDigest is SHA-256 of the stored spec as PostgreSQL prints it (spec::text); zero
	// for a plan that is not from a database.
	SpecDigest [32]byte
	// SpecText is the stored spec as PostgreSQL prints it; nil for a plan that is not
	// from a database.
	SpecText []byte
	// OverrideSetID is the overrides that the plan stands under; see [Plan.Under].
	OverrideSetID int64
}

// A Tenant is the paying customer's configuration.
type Tenant struct {
	ID            int64 // identity in the database; 0 in a config file
	Name          string
	Plan          string     // in force
	NextPlan      string     // in force from NextPlanAt on; "" for none
	NextPlanAt    time.Time  // zero for none
	Overrides     []Override // of limits of the plan
	OverrideSetID int64      // in the database; 0 without overrides
	Status        Status
	Timezone      string // IANA name
	BillingAnchor int    // day of month, 1-31
	CreatedAt     time.Time
}

// A Status says whether a tenant may spend.
type Status string

const (
	StatusActive    Status = "active"
	StatusSuspended Status = "suspended"
	StatusClosed    Status = "closed"
)

// A Snapshot is the whole configuration of meters, plans and settings at one version. It is
// immutable and safe for concurrent use.
type Snapshot struct {
	Version int64
	meters  map[string]*Meter
	plans   map[string]*Plan

	settings Settings
}

// NewSnapshot makes a snapshot of its own copies of the maps' contents.
func NewSnapshot(version int64, meters []*Meter, plans []*Plan) *Snapshot {
	s := &Snapshot{
		Version: version,
		meters:  make(map[string]*Meter, len(meters)),
		plans:   make(map[string]*Plan, len(plans)),
	}
	for _, m := range meters {
		s.meters[m.Name] = m
	}
	for _, p := range plans {
		s.plans[p.Name] = p
	}
	return s
}

// Meter returns the meter of that name; nil if there is none.
func (s *Snapshot) Meter(name string) *Meter { return s.meters[name] }

// Settings returns what holds for the whole database.
func (s *Snapshot) Settings() Settings { return s.settings }

// Plan returns the current version of the plan of that name; nil if there is none.
func (s *Snapshot) Plan(name string) *Plan { return s.plans[name] }
