package quota

import "testing"

func TestSlidingLogWindowIsHalfOpen(t *testing.T) {
	t.Parallel()
	p := tape{rule: slidingLog{windowMicros: minute}}
	p.take(100*second, 5)
	for _, row := range []struct{ now, want int64 }{
		{100 * second, 5},          // the entry's own instant counts
		{160*second - 1, 5},        // the last microsecond it counts
		{160 * second, 0},          // exactly one window later it does not
		{160*second + 1000_000, 0}, // nor ever again
	} {
		if got := p.rule.Used(p.view(row.now)); got != row.want {
			t.Errorf("used at %d µs = %d, want %d", row.now, got, row.want)
		}
	}
}

func TestSlidingLogAdmitsExactlyItsLimitAndWaitsForTheOldest(t *testing.T) {
	t.Parallel()
	p := tape{rule: slidingLog{windowMicros: hours}}
	for i := range int64(3) {
		if !p.offer(i*second, 1, 3) {
			t.Fatalf("call %d of 3 was denied", i+1)
		}
	}
	now := 10 * second
	if p.offer(now, 1, 3) {
		t.Fatal("call 4 of 3 was admitted")
	}
	for _, row := range []struct{ target, want int64 }{
		{3, now},              // fits already
		{2, hours},            // the first entry leaves
		{1, hours + second},   // the second
		{0, hours + 2*second}, // the last, from LastAtMicros
	} {
		if got, ok := p.rule.FreeAt(p.view(now), row.target); got != row.want || !ok {
			t.Errorf("FreeAt(target %d) = %d, %v, want %d, true", row.target, got, ok, row.want)
		}
	}
}

func TestSlidingLogNeverAsksForACrossingWhenItEmpties(t *testing.T) {
	t.Parallel()
	rule := slidingLog{windowMicros: minute}
	v := View{NowMicros: 90 * second, Total: 7, Before: []int64{0}, LastAtMicros: 80 * second}
	if got, ok := rule.FreeAt(v, 0); got != 140*second || !ok {
		t.Errorf("FreeAt(0) = %d, %v, want %d, true", got, ok, 140*second)
	}
}

func TestSlidingLogReadsTheFirstMicrosecondInside(t *testing.T) {
	t.Parallel()
	got := slidingLog{windowMicros: minute}.Edges(100 * second)
	if want := (Edge{AtMicros: 40*second + 1, Sliding: true}); len(got) != 1 || got[0] != want {
		t.Errorf("Edges = %v, want [%v]", got, want)
	}
}
