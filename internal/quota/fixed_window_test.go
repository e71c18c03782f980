package quota

import (
	"testing"
	"time"

	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
)

func TestFixedWindowStartsFreshAtItsBoundary(t *testing.T) {
	t.Parallel()
	p := tape{rule: fixedWindow{lengthMicros: hours}}
	last := hours - 1
	for range 2 {
		if !p.offer(last, 1, 2) {
			t.Fatal("a call under the limit was denied")
		}
	}
	if p.offer(last, 1, 2) {
		t.Fatal("a call over the limit was admitted")
	}
	if got, ok := p.rule.FreeAt(p.view(last), 1); got != hours || !ok {
		t.Errorf("FreeAt = %d, %v, want %d, true", got, ok, hours)
	}
	if got := p.rule.Used(p.view(hours)); got != 0 {
		t.Errorf("used at the boundary = %d, want 0", got)
	}
	p.take(hours, 1) // [start, end): the boundary belongs to the new window
	if got := p.rule.Used(p.view(hours)); got != 1 {
		t.Errorf("used after the first call of the window = %d, want 1", got)
	}
}

func TestFixedWindowFollowsTheTenantsCalendar(t *testing.T) {
	t.Parallel()
	cal, err := calendar.New(calendar.Setting{Timezone: "Asia/Jakarta", BillingAnchor: 1}, nil, time.LoadLocation)
	if err != nil {
		t.Fatal(err)
	}
	rule := newAlgorithm(catalog.Limit{
		Algorithm: catalog.FixedWindow, Limit: 10, Window: catalog.Window{Calendar: catalog.CalendarDay},
	}, cal)
	p := tape{rule: rule}
	now := micros("2024-05-10T16:59:59.999999Z") // 23:59 in Jakarta
	p.take(now, 10)
	if got := rule.Edges(now); len(got) != 1 || got[0] != (Edge{AtMicros: micros("2024-05-09T17:00:00Z")}) {
		t.Errorf("Edges = %v, want the local midnight, standing still", got)
	}
	if got, ok := rule.FreeAt(p.view(now), 9); got != micros("2024-05-10T17:00:00Z") || !ok {
		t.Errorf("FreeAt = %s, %v, want 2024-05-10T17:00:00Z, true", instant(got), ok)
	}
}
