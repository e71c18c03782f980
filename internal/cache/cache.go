package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
)

// loadAttemptsMax bounds how often a caller looks up anew because the one whose
// look-up it shared went away.
const loadAttemptsMax = 3

// Options bounds a cache.
type Options struct {
	EntriesMax int           // required
	TTL        time.Duration // 0: values do not age

	// Now is the clock that values age by; time.Now if nil. Tests replace it.
	Now func() time.Time
}

// A Cache is a bounded set of copies. Make one with [New].
type Cache[K comparable, V any] struct {
	ttl     time.Duration
	now     func() time.Time
	entries *otter.Cache[K, entry[V]]
	deletes atomic.Int64 // how often something was deleted

	mu    sync.Mutex
	loads map[K]*load[V] // look-ups under way
}

type entry[V any] struct {
	value  V
	readAt time.Time
}

// A load is one look-up; done is closed once value and err are set.
type load[V any] struct {
	done  chan struct{}
	value V
	err   error
}

// New returns an empty cache. It panics if o is not valid, which is a fault of ours.
func New[K comparable, V any](o Options) *Cache[K, V] {
	if o.EntriesMax < 1 || o.TTL < 0 {
		panic(fmt.Sprintf("cache: invalid options %+v", o))
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Cache[K, V]{
		ttl:   o.TTL,
		now:   o.Now,
		loads: map[K]*load[V]{},
		// Values age here, not in otter: its expiry counts from when a value was
		// stored, and runs a goroutine. Its upkeep is done by whoever writes.
		entries: otter.Must(&otter.Options[K, entry[V]]{
			MaximumSize: o.EntriesMax,
			Executor:    func(work func()) { work() },
		}),
	}
}

// Get returns the value of key if there is one that has not aged out.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	e, ok := c.entries.GetIfPresent(key)
	if !ok || c.ttl > 0 && c.now().Sub(e.readAt) >= c.ttl {
		return value, false
	}
	return e.value, true
}

// Set keeps a value that is true now.
func (c *Cache[K, V]) Set(key K, value V) { c.entries.Set(key, entry[V]{value, c.now()}) }

// Delete forgets key. A look-up that began before is not kept either.
func (c *Cache[K, V]) Delete(key K) {
	c.deletes.Add(1)
	c.mu.Lock()
	delete(c.loads, key) // later callers must not share what was read before
	c.mu.Unlock()
	c.entries.Invalidate(key)
}

// Len returns about how many values are kept, aged ones included.
func (c *Cache[K, V]) Len() int { return c.entries.EstimatedSize() }

// Load returns the value of key, and looks it up with read if it is not there. Callers
// at the same time share one look-up, under the context of the first; if that one
// gives up, another takes over. An error of read is returned as it is.
func (c *Cache[K, V]) Load(ctx context.Context, key K, read func(context.Context, K) (V, error)) (V, error) {
	var none V
	for range loadAttemptsMax {
		if value, ok := c.Get(key); ok {
			return value, nil
		}
		c.mu.Lock()
		shared, underWay := c.loads[key]
		if !underWay {
			shared = &load[V]{done: make(chan struct{})}
			c.loads[key] = shared
		}
		c.mu.Unlock()
		if !underWay {
			c.run(ctx, key, shared, read)
			return shared.value, shared.err
		}
		select {
		case <-shared.done:
		case <-ctx.Done():
			return none, ctx.Err()
		}
		if !abandoned(shared.err) {
			return shared.value, shared.err
		}
	}
	return read(ctx, key) // not shared and not kept, but an answer
}

// errPanicked is what those who shared a look-up get if it panicked.
var errPanicked = errors.New("the look-up panicked")

// run does a look-up, keeps its value unless something was deleted meanwhile, and
// tells those who wait.
func (c *Cache[K, V]) run(ctx context.Context, key K, l *load[V], read func(context.Context, K) (V, error)) {
	readAt, deletes := c.now(), c.deletes.Load()
	l.err = errPanicked
	defer func() {
		c.mu.Lock()
		if c.loads[key] == l {
			delete(c.loads, key)
		}
		c.mu.Unlock()
		close(l.done)
	}()
	l.value, l.err = read(ctx, key)
	if l.err == nil && c.deletes.Load() == deletes {
		c.entries.Set(key, entry[V]{l.value, readAt})
		if c.deletes.Load() != deletes {
			c.entries.Invalidate(key) // it was deleted between the check and the write
		}
	}
}

// abandoned reports whether a look-up ended because its caller went away.
func abandoned(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
