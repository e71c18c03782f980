package api

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
)

func (s *service) usage(query string) answer {
	s.t.Helper()
	return s.get(catalog.KeyRead, "/v1/tenants/globex/usage?meter=llm.tokens&"+query)
}

// Usage of a month with traffic in it, of the tenant and of its subjects, in its own
// time zone and from its own anchor.
func TestUsageAnswers(t *testing.T) {
	t.Parallel()
	s := newService(t) // globex: Asia/Jakarta, months from the 15th; it is the 31st, 19:00 there
	for i := range 5 {
		s.consume(fmt.Sprintf(`{"tenant":"globex","subject":"u%d","meter":"llm.tokens","cost":%d}`, i%2, 100+i)).want(t, 200)
		s.db.AdvanceClock(t, 2*time.Hour)
	}
	s.consume(`{"tenant":"globex","meter":"llm.tokens","cost":7}`).want(t, 200)
	month := read[usageBody](t, s.usage(""))
	if want := time.Date(2026, 1, 14, 17, 0, 0, 0, time.UTC); !month.From.Equal(want) || month.Total != 517 || month.Zone != "Asia/Jakarta" {
		t.Errorf("usage without parameters = %+v, want 517 from %v on", month, want)
	}
	golden(t, "usage_days", s.usage("from=2026-01-30T20:00:00Z&to=2026-02-01T00:00:00Z"))
	golden(t, "usage_by_subject", s.usage("group_by=subject&bucket=month&tz=Europe/Berlin&from=2026-01-31T00:00:00Z&to=2026-02-02T00:00:00Z"))
	golden(t, "usage_of_a_subject", s.usage("subject=u1&bucket=hour&from=2026-01-31T14:00:00Z&to=2026-01-31T16:30:00Z"))
	nobody := read[usageBody](t, s.usage("subject=nobody&bucket=week"))
	if nobody.Total != 0 || len(nobody.Series) != 1 {
		t.Errorf("usage of an unknown subject = %+v, want nothing", nobody)
	}
	past := s.usage("from=2026-01-31T00:00:00Z&to=2026-01-31T16:00:00Z&bucket=hour").want(t, 200)
	s.consume(`{"tenant":"globex","subject":"u0","meter":"llm.tokens","cost":9}`).want(t, 200)
	if again := s.usage("from=2026-01-31T00:00:00Z&to=2026-01-31T16:00:00Z&bucket=hour"); again.body != past.body {
		t.Errorf("usage of the past = %s, was %s", again.body, past.body)
	}
}

// However a range is cut, in whatever zone and by whatever subject, its parts sum to it.
func TestUsageSumsToItsTotal(t *testing.T) {
	t.Parallel()
	s := newService(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	type spent struct {
		at   time.Time
		cost int64
	}
	var history []spent
	now := time.Date(2026, 3, 27, 22, 0, 0, 0, time.UTC) // over Europe's change of clocks
	for range 60 {
		now = now.Add(time.Duration(random.Int64N(int64(3 * time.Hour)))).Truncate(time.Microsecond)
		s.db.SetClock(t, now)
		cost := random.Int64N(100)
		a := s.consume(fmt.Sprintf(`{"tenant":"globex","subject":"u%d","meter":"llm.tokens","cost":%d}`, random.IntN(7), cost))
		if a.status == 200 {
			history = append(history, spent{now, cost})
		}
	}
	for range 40 {
		from := time.Date(2026, 3, 27, 0, 0, 0, 0, time.UTC).Add(time.Duration(random.Int64N(int64(48 * time.Hour)))).Truncate(time.Microsecond)
		to := from.Add(time.Duration(1 + random.Int64N(int64(7*24*time.Hour)))).Truncate(time.Microsecond).Add(time.Microsecond)
		want := int64(0)
		for _, h := range history {
			if !h.at.Before(from) && h.at.Before(to) {
				want += h.cost
			}
		}
		zone := []string{"UTC", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe"}[random.IntN(4)]
		query := url.Values{
			"from": {from.Format(time.RFC3339Nano)}, "to": {to.Format(time.RFC3339Nano)}, "tz": {zone},
			"bucket": {usageBuckets[1+random.IntN(4)]},
		}.Encode()
		whole := read[usageBody](t, s.usage(query))
		if whole.Total != want || whole.Series[0].Total != want {
			t.Errorf("usage with %s = %d, series %d, want %d", query, whole.Total, whole.Series[0].Total, want)
		}
		subjects, cursor := int64(0), ""
		for {
			page := read[usageBody](t, s.usage(query+"&group_by=subject&limit=3"+cursor))
			for _, series := range page.Series {
				checkTiles(t, &page, &series)
				subjects += series.Total
			}
			if page.NextCursor == "" {
				break
			}
			cursor = "&cursor=" + page.NextCursor
		}
		if subjects != want {
			t.Errorf("subjects with %s sum to %d, want %d", query, subjects, want)
		}
	}
}

func checkTiles(t *testing.T, page *usageBody, s *usageSeriesBody) {
	t.Helper()
	at, sum := page.From, int64(0)
	for _, b := range s.Buckets {
		if !b.From.Equal(at) || !b.From.Before(b.To) {
			t.Fatalf("bucket %+v, want one from %v on", b, at)
		}
		at, sum = b.To, sum+b.Units
	}
	if !at.Equal(page.To) || sum != s.Total {
		t.Fatalf("buckets end at %v and sum to %d, want %v and %d", at, sum, page.To, s.Total)
	}
}

func TestUsageRefusesWhatItCannotCut(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for query, want := range map[string][2]string{
		"bucket=minute&from=2026-01-01T00:00:00Z&to=2026-01-03T00:00:00Z": {"bucket", "larger bucket"},
		"bucket=year":                  {"bucket", "one of"},
		"tz=Mars/Olympus":              {"tz", "IANA"},
		"tz=Local":                     {"tz", "IANA"},
		"tz=../../etc/passwd":          {"tz", "IANA"},
		"group_by=dims":                {"group_by", "one of"},
		"cursor=AAAA":                  {"cursor", "without group_by"},
		"limit=7":                      {"limit", "without group_by"},
		"subject=":                     {"subject", ""},
		"from=yesterday":               {"from", "RFC 3339"},
		"from=2027-01-01T00:00:00Z":    {"from", "before to"},
		"group_by=subject&subject=u":   {"subject", "together"},
		"group_by=subject&cursor=AAAA": {"cursor", "next_cursor"},
	} {
		s.usage(query).wantFault(t, want[0], want[1])
	}
	s.get(catalog.KeyRead, "/v1/tenants/globex/usage").wantFault(t, "meter", "required")
	s.get(catalog.KeyRead, "/v1/tenants/globex/usage?meter=nothing").want(t, 400, codeMeterNotFound)
	s.get(catalog.KeyRead, "/v1/tenants/nobody/usage?meter=api.calls").want(t, 404, codeTenantNotFound)
	// A day of minutes with an hour more than usual fits.
	page := read[usageBody](t, s.usage("bucket=minute&tz=Europe/Berlin&from=2025-10-25T22:00:00Z&to=2025-10-26T23:00:00Z"))
	if diff := cmp.Diff(1500, len(page.Series[0].Buckets)); diff != "" {
		t.Errorf("minutes of a day of 25 hours, want-, got+:\n%s", diff)
	}
}

// Pages of subjects are of one range, whatever is used between them: they can be added
// up. What was used without a subject is in no series.
func TestPagesOfUsageAreOfOneRange(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i := range 5 {
		s.consume(fmt.Sprintf(`{"tenant":"globex","subject":"u%d","meter":"llm.tokens","cost":%d}`, i, 1+i)).want(t, 200)
	}
	s.consume(`{"tenant":"globex","meter":"llm.tokens","cost":100}`).want(t, 200)
	first := read[usageBody](t, s.usage("group_by=subject&limit=2"))
	sum, page := int64(0), first
	for {
		for _, series := range page.Series {
			sum += series.Total
		}
		if page.NextCursor == "" {
			break
		}
		s.pass(time.Hour)
		s.consume(`{"tenant":"globex","subject":"u4","meter":"llm.tokens","cost":1000}`).want(t, 200)
		page = read[usageBody](t, s.usage("group_by=subject&limit=2&cursor="+page.NextCursor))
		if !page.From.Equal(first.From) || !page.To.Equal(first.To) || page.Total != first.Total {
			t.Errorf("a later page is of %v to %v and %d in all, the first one of %v to %v and %d",
				page.From, page.To, page.Total, first.From, first.To, first.Total)
		}
	}
	if sum != 15 || first.Total != 115 {
		t.Errorf("subjects sum to %d of %d, want 15 of 115", sum, first.Total)
	}
}

// What is read from where the last answer ended misses nothing, while holds end that charge.
func TestChainedUsageMissesNoEndOfAHold(t *testing.T) {
	t.Parallel()
	const holds = 200
	s := newService(t)
	s.apply(`
meters: {chg: {unit: unit, on_expiry: charge}}
plans: {ends: {limits: [{name: all, meter: chg, algorithm: sliding_log, limit: 1000000, window: 24h}]}}
tenants: {ending: {plan: ends}}
`)
	items := make([]string, holds)
	for i := range items {
		items[i] = fmt.Sprintf(`{"tenant":"ending","meter":"chg","cost":1,"ttl_ms":%d}`, i+1)
	}
	s.holdBatch(items...)
	const usage = "/v1/tenants/ending/usage?meter=chg"
	whole := read[usageBody](t, s.get(catalog.KeyRead, usage))
	from, sum := whole.To, whole.Total
	next := func() {
		chained := s.get(catalog.KeyRead, usage+"&from="+url.QueryEscape(from.Format(time.RFC3339Nano)))
		if chained.status == 400 {
			return // the clock stands where it stood
		}
		answer := read[usageBody](t, chained)
		from, sum = answer.To, sum+answer.Total
	}
	var ticking errgroup.Group
	var over atomic.Bool
	ticking.Go(func() error {
		defer over.Store(true)
		for range holds + 1 {
			s.db.AdvanceClock(t, time.Millisecond)
		}
		return nil
	})
	for !over.Load() {
		next()
	}
	ticking.Wait()
	s.db.AdvanceClock(t, time.Second)
	next()
	if sum != holds {
		t.Errorf("chained answers sum to %d, want %d", sum, holds)
	}
}
