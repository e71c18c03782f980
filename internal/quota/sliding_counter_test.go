package quota

import "testing"

// 84 in the last minute, 36 in this one, 15 s in: 84·45 + 36·60 = 5940, so of 100·60
// one more unit fits.
func TestSlidingCounterWorkedExample(t *testing.T) {
	t.Parallel()
	p := tape{rule: slidingCounter{windowMicros: minute}}
	p.take(30*second, 84)
	p.take(70*second, 36)
	now := 75 * second
	if got := p.rule.Used(p.view(now)); got != 99 {
		t.Fatalf("used = %d, want 99", got)
	}
	if !p.offer(now, 1, 100) {
		t.Error("one more does not fit")
	}
	if p.offer(now, 1, 100) {
		t.Error("two more fit")
	}
	// 84·(60−e) + 38·60 ≤ 6000 from e = 60 − 62·60/84 s = 15.714286 s on.
	if got, ok := p.rule.FreeAt(p.view(now), 99); got != 75_714_286 || !ok {
		t.Errorf("FreeAt(99) = %d, %v, want 75714286, true", got, ok)
	}
}

func TestSlidingCounterFreesInThisCellTheNextOrTheOneAfter(t *testing.T) {
	t.Parallel()
	p := tape{rule: slidingCounter{windowMicros: minute}}
	p.take(0, 60)
	p.take(60*second, 20)
	now := 60 * second
	for _, row := range []struct{ target, want int64 }{
		{80, now},
		{79, 61 * second},  // the previous cell fades by one unit a second
		{50, 90 * second},  // halfway through
		{20, 120 * second}, // the current cell alone, as the next begins
		{19, 123 * second}, // 20·(60−e) ≤ 19·60 from e = 3 s on, in the next cell
		{1, 177 * second},  //
		{0, 180 * second},  // only when the cell after it begins
	} {
		if got, ok := p.rule.FreeAt(p.view(now), row.target); got != row.want || !ok {
			t.Errorf("FreeAt(target %d) = %d, %v, want %d, true", row.target, got, ok, row.want)
		}
	}
}

func TestSlidingCounterReadsTwoAlignedEdges(t *testing.T) {
	t.Parallel()
	got := slidingCounter{windowMicros: minute}.Edges(75 * second)
	if len(got) != 2 || got[0] != (Edge{AtMicros: 0}) || got[1] != (Edge{AtMicros: minute}) {
		t.Errorf("Edges = %v, want the starts of both cells, standing still", got)
	}
}
