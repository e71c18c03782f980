package cache

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A clock is a process's clock that a test moves.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1_800_000_000, c.offset.Load()) }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

func TestValueIsGoneOnceItIsAsOldAsTTL(t *testing.T) {
	t.Parallel()
	var c clock
	cache := New[string, int](Options{EntriesMax: 10, TTL: time.Second, Now: c.now})
	cache.Set("a", 1)
	c.advance(time.Second - 1)
	if v, ok := cache.Get("a"); v != 1 || !ok {
		t.Errorf("Get just before TTL = %d, %v; want 1", v, ok)
	}
	c.advance(1)
	if v, ok := cache.Get("a"); ok {
		t.Errorf("Get at TTL = %d, want nothing", v)
	}
}

// A slow look-up must not make what it read look younger than it is: that is how a
// revoked key would live on.
func TestValueAgesFromBeforeItWasRead(t *testing.T) {
	t.Parallel()
	var c clock
	cache := New[string, int](Options{EntriesMax: 10, TTL: time.Second, Now: c.now})
	slow := func(context.Context, string) (int, error) {
		c.advance(900 * time.Millisecond)
		return 1, nil
	}
	if v, err := cache.Load(t.Context(), "a", slow); v != 1 || err != nil {
		t.Fatalf("Load = %d, %v", v, err)
	}
	c.advance(100 * time.Millisecond)
	if v, ok := cache.Get("a"); ok {
		t.Errorf("Get a TTL after the look-up began = %d, want nothing", v)
	}
}

func TestMissesAtTheSameTimeShareOneLookUp(t *testing.T) {
	t.Parallel()
	cache := New[string, int](Options{EntriesMax: 10})
	var reads atomic.Int32
	reading, finish := make(chan struct{}), make(chan struct{})
	read := func(context.Context, string) (int, error) {
		if reads.Add(1) == 1 {
			close(reading)
		}
		<-finish
		return 7, nil
	}
	var group errgroup.Group
	load := func() error {
		if v, err := cache.Load(t.Context(), "a", read); v != 7 || err != nil {
			t.Errorf("Load = %d, %v; want 7", v, err)
		}
		return nil
	}
	group.Go(load)
	<-reading
	for range 20 {
		group.Go(load)
	}
	close(finish)
	_ = group.Wait()
	if n := reads.Load(); n != 1 {
		t.Errorf("%d look-ups, want 1", n)
	}
}

func TestErrorsAreSharedAndNotKept(t *testing.T) {
	t.Parallel()
	cache := New[string, int](Options{EntriesMax: 10})
	broken := errors.New("broken")
	_, err := cache.Load(t.Context(), "a", func(context.Context, string) (int, error) { return 1, broken })
	if err != broken {
		t.Errorf("Load = %v, want the look-up's own error", err)
	}
	v, err := cache.Load(t.Context(), "a", func(context.Context, string) (int, error) { return 2, nil })
	if v != 2 || err != nil {
		t.Errorf("Load after an error = %d, %v; want 2", v, err)
	}
}

// One client that hangs up must not fail the others that asked the same.
func TestAnotherTakesOverWhenTheFirstGivesUp(t *testing.T) {
	t.Parallel()
	cache := New[string, int](Options{EntriesMax: 10})
	first, hangUp := context.WithCancel(t.Context())
	reading := make(chan struct{})
	var group errgroup.Group
	group.Go(func() error {
		_, err := cache.Load(first, "a", func(ctx context.Context, _ string) (int, error) {
			close(reading)
			<-ctx.Done()
			return 0, ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Load of the first = %v, want its own cancellation", err)
		}
		return nil
	})
	<-reading
	group.Go(func() error {
		v, err := cache.Load(t.Context(), "a", func(context.Context, string) (int, error) { return 7, nil })
		if v != 7 || err != nil {
			t.Errorf("Load of the second = %d, %v; want 7", v, err)
		}
		return nil
	})
	group.Go(func() error {
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		read := func(ctx context.Context, _ string) (int, error) { return 7, ctx.Err() }
		if v, err := cache.Load(gone, "a", read); err != nil && !errors.Is(err, context.Canceled) || err == nil && v != 7 {
			t.Errorf("Load of one that is gone = %d, %v", v, err)
		}
		hangUp()
		return nil
	})
	_ = group.Wait()
}

// What was read before a Delete is not true after it.
func TestDeleteDuringALookUpKeepsNothing(t *testing.T) {
	t.Parallel()
	cache := New[string, int](Options{EntriesMax: 10})
	v, err := cache.Load(t.Context(), "a", func(ctx context.Context, key string) (int, error) {
		cache.Delete(key)
		if v, err := cache.Load(ctx, key, func(context.Context, string) (int, error) { return 2, nil }); v != 2 || err != nil {
			t.Errorf("Load after the Delete = %d, %v; want a look-up of its own", v, err)
		}
		return 1, nil
	})
	if v != 1 || err != nil {
		t.Errorf("Load = %d, %v", v, err)
	}
	if v, ok := cache.Get("a"); ok && v != 2 {
		t.Errorf("Get = %d, which was read before the Delete", v)
	}
}

func TestPanicOfALookUpFreesThoseWhoWait(t *testing.T) {
	t.Parallel()
	cache := New[string, int](Options{EntriesMax: 10})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = cache.Load(t.Context(), "a", func(context.Context, string) (int, error) { panic("broken") })
	}()
	if v, err := cache.Load(t.Context(), "a", func(context.Context, string) (int, error) { return 1, nil }); v != 1 || err != nil {
		t.Errorf("Load after a panic = %d, %v; want 1", v, err)
	}
}

func TestEntriesAreBounded(t *testing.T) {
	t.Parallel()
	const most = 100
	cache := New[int, int](Options{EntriesMax: most})
	for i := range 100 * most {
		cache.Set(i, i)
	}
	if n := cache.Len(); n > 2*most {
		t.Errorf("%d entries, want about %d", n, most)
	}
}

func TestInvalidOptionsPanic(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{}, {EntriesMax: -1}, {EntriesMax: 1, TTL: -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("New(%+v) did not panic", o)
				}
			}()
			New[int, int](o)
		}()
	}
}

// Against a map that is never full: what is returned is what was last put there, and
// no older than TTL.
func TestCacheNeverReturnsWhatIsNotTrue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const ttl = 10 * time.Second
		var c clock
		cache := New[int, int](Options{EntriesMax: 1000, TTL: ttl, Now: c.now})
		type truth struct {
			value int
			at    time.Time
		}
		model := map[int]truth{}
		key := rapid.IntRange(0, 5)
		check := func(k, got int, ok bool) {
			want, there := model[k]
			there = there && c.now().Sub(want.at) < ttl
			if ok != there || ok && got != want.value {
				t.Fatalf("Get(%d) = %d, %v; want %d, %v", k, got, ok, want.value, there)
			}
		}
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				k := key.Draw(t, "key")
				next++
				cache.Set(k, next)
				model[k] = truth{next, c.now()}
			},
			"delete": func(t *rapid.T) {
				k := key.Draw(t, "key")
				cache.Delete(k)
				delete(model, k)
			},
			"get": func(t *rapid.T) {
				k := key.Draw(t, "key")
				v, ok := cache.Get(k)
				check(k, v, ok)
			},
			"load": func(t *rapid.T) {
				k := key.Draw(t, "key")
				slow := time.Duration(rapid.IntRange(0, 15).Draw(t, "seconds")) * time.Second
				_, err := cache.Load(context.Background(), k, func(context.Context, int) (int, error) {
					next++
					model[k] = truth{next, c.now()}
					c.advance(slow)
					return next, nil
				})
				if err != nil {
					t.Fatal(err)
				}
			},
			"advance": func(t *rapid.T) {
				c.advance(time.Duration(rapid.IntRange(0, 15).Draw(t, "seconds")) * time.Second)
			},
		})
	})
}
