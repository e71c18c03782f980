package quota

import "time"

// WithoutUpkeep makes an engine leave the ends of holds to requests, so that a test knows
// when each is written.
func (c Config) WithoutUpkeep() Config {
	c.upkeepEvery = 24 * time.Hour
	return c
}
