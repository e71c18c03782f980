package calendar

// Buckets cuts the range from, and including, one instant to, and not including, a
// later one at the boundaries of a word. It returns the edges: bucket i goes from edge
// i up to edge i+1, so the buckets tile the range, and the first and the last are cut
// to it. ok is false if there would be more than most.
func (c *Calendar) Buckets(word Word, fromMicros, toMicros int64, most int) (edges []int64, ok bool) {
	edges = append(make([]int64, 0, 32), fromMicros)
	for at := fromMicros; at < toMicros; {
		if len(edges) > most {
			return nil, false
		}
		_, end := c.Window(word, at)
		at = min(end, toMicros)
		edges = append(edges, at)
	}
	return edges, true
}
