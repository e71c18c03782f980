package api

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/quota"
)

// While the database's clock is behind a tenant's newest entry, the tenant's time stands
// still: nothing comes back twice, nothing is taken away, no call fails, and a denial's
// wait is what that clock will really take. Once it has caught up, all goes on as if it
// had never been set.
func TestAClockThatIsSetBackGivesNothingAndTakesNothing(t *testing.T) {
	t.Parallel()
	const back = 30*time.Minute + 250*time.Millisecond
	s := newKinds(t, configOf(5))
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		first := s.admitted(k.name, 2)
		s.pass(-back)
		for remaining := int64(2); remaining >= 0; remaining-- {
			d := s.admitted(k.name, 1)
			if got := left(t, d); got != remaining || !d.DecidedAt.Equal(first.DecidedAt) {
				t.Errorf("set back: remaining = %d at %v, want %d at %v", got, d.DecidedAt, remaining, first.DecidedAt)
			}
			s.pass(-time.Second)
		}
		a, d := s.spend(k.name, 1)
		wantWait(t, a, d)
		wantRemaining(t, a, d, 0)
		wait := retryMillis(t, d)
		behind := (back + 3*time.Second).Milliseconds()
		if wait <= behind {
			t.Errorf("a wait of %d ms with the clock %d ms behind", wait, behind)
		}
		s.passMillis(behind) // where the tenant's time is
		if got := retryMillis(t, s.denied(k.name, 1)); got != wait-behind {
			t.Errorf("a wait of %d ms once the clock has caught up, want %d", got, wait-behind)
		}
		s.passMillis(wait - behind - 1)
		s.denied(k.name, 1)
		s.passMillis(1)
		s.admitted(k.name, 1)
	})
}

// Many calls at one and the same instant are decided like any others.
func TestAClockThatStandsStillIsNoError(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		passed := 0
		for range 12 {
			if _, d := s.spend(k.name, 1); d.Allowed {
				passed++
			}
		}
		if passed != 5 {
			t.Errorf("%d of 12 calls at one instant pass, want 5", passed)
		}
	})
}

// A clock that jumps ahead frees windows early, once: when it is set back, what was
// freed is not freed again. Whoever runs quotad is told, by readiness, log and metric.
func TestAClockThatWasSetIsWarnedOf(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	s.admitted("log", 5)
	s.pass(time.Hour)
	s.admitted("log", 5)
	s.pass(-time.Hour)
	for range 3 {
		s.denied("log", 1)
		s.pass(10 * time.Minute)
	}
	if got := read[readyBody](t, s.do(request{method: http.MethodGet, path: "/readyz"})); !got.Ready || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "clock was set") {
		t.Errorf("readyz = %+v, want it ready with a warning of the clock", got)
	}
	metrics := s.do(request{method: http.MethodGet, path: "/metrics"}).want(t, 200).body
	if !strings.Contains(metrics, "quotad_clock_steps_total") || strings.Contains(metrics, "quotad_clock_steps_total 0") {
		t.Error("quotad_clock_steps_total counts nothing")
	}
	for _, step := range []string{`clock was set" step=(1h0m|59m)`, `clock was set" step=(-1h0m)`} {
		if !regexp.MustCompile(step).MatchString(s.logs.String()) {
			t.Errorf("the log does not speak of %s:\n%s", step, s.logs.String())
		}
	}
}

// The clock of an instance decides nothing. Two instances answer in turn on a database
// whose clock is decades behind theirs, and on one whose clock is decades ahead: the
// answers are the same, to the millisecond, as is the instant they name. Calendars repeat
// after 28 years.
func TestDecisionsFollowTheDatabasesClockAlone(t *testing.T) {
	t.Parallel()
	script := func(start time.Time) (said []string) {
		instances := newInstances(t, 2, configOf(5))
		for _, k := range kinds {
			now := start
			for step := range 10 {
				instances[0].db.SetClock(t, now)
				d := instances[step%2].decided(instances[step%2].consume(charging(k.name, int64(step%4))))
				if want := now; !d.DecidedAt.Equal(want) {
					t.Errorf("%s is decided at %v, want %v", k.name, d.DecidedAt, want)
				}
				l := d.Limits[0]
				said = append(said, fmt.Sprint(k.name, step, d.Allowed, l.Used, l.Remaining, l.ResetMS, value(d.RetryMS), value(l.DelayMS)))
				now = now.Add(time.Duration(step*step) * 1234567 * time.Microsecond)
			}
		}
		return said
	}
	if diff := cmp.Diff(script(startOfTest.AddDate(-28, 0, 0)), script(startOfTest.AddDate(28, 0, 0))); diff != "" {
		t.Errorf("decisions of 1998-, of 2054+:\n%s", diff)
	}
}

func value(n *int64) string {
	if n == nil {
		return "none"
	}
	return fmt.Sprint(*n)
}

// What was used expires by the instants that are written down: no timer, no cleaner and
// no running instance is needed for it. A tenant that used everything, and whose
// instances then all stopped, finds all of it again, and not before its time.
func TestUsageExpiresWithNobodyCleaning(t *testing.T) {
	t.Parallel()
	first := newKinds(t, configOf(5))
	waits := map[string]quota.LimitResult{}
	for _, k := range kinds {
		waits[k.name] = first.admitted(k.name, 5).Limits[0]
	}
	first.Server.Close()
	first.stop()
	second := startService(t, first.db, 0)
	eachKind(t, second, func(t *testing.T, s *service, k kind) {
		s.passMillis(waits[k.name].ResetMS - 1)
		s.denied(k.name, 5)
		s.passMillis(1)
		s.admitted(k.name, 5)
		s.pass(100 * 365 * 24 * time.Hour)
		if got := left(t, s.admitted(k.name, 4)); got != 1 {
			t.Errorf("remaining = %d a hundred years later, want 1", got)
		}
	})
}
