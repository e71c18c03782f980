package cache

import (
	"container/list"
	"fmt"
	"sync"
	"time"
)

// ExhaustionOptions bounds an [Exhaustion]; both are required.
type ExhaustionOptions struct {
	EntriesMax int
	BytesMax   int // over all denials, as those who give them say
}

// An Exhaustion holds denials that stand until an instant: what was asked for is used up,
// and nothing gives it back before. It can only ever deny. Make one with [NewExhaustion].
type Exhaustion[V any] struct {
	options ExhaustionOptions

	mu     sync.Mutex
	owners map[string]map[Question]*list.Element
	age    list.List // of *Denial[V], the one remembered last in front
	bytes  int
}

// A Question names what was asked for, the same for equal questions only: a digest over
// all that the answer depends on.
type Question [32]byte

// A Denial is the answer to a question until an instant.
type Denial[V any] struct {
	Owner    string // whose denials are forgotten together
	Question Question
	Until    time.Time // on the monotonic clock; the answer may be another from then on
	Bytes    int       // about what Value takes
	Value    V
}

// NewExhaustion returns an empty memory. It panics if o is not valid, which is a fault of
// ours.
func NewExhaustion[V any](o ExhaustionOptions) *Exhaustion[V] {
	if o.EntriesMax < 1 || o.BytesMax < 1 {
		panic(fmt.Sprintf("cache: invalid options %+v", o))
	}
	return &Exhaustion[V]{options: o, owners: make(map[string]map[Question]*list.Element)}
}

// Remember keeps d in place of what was remembered of its question, and forgets the
// oldest denials where there is no room. One that is over by now, or larger than all
// there is room for, is not kept.
func (x *Exhaustion[V]) Remember(d Denial[V], now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(x.owners[d.Owner][d.Question])
	if !now.Before(d.Until) || d.Bytes > x.options.BytesMax {
		return
	}
	for oldest := x.age.Back(); oldest != nil; oldest = x.age.Back() {
		full := x.age.Len() >= x.options.EntriesMax || x.bytes+d.Bytes > x.options.BytesMax
		if !full && now.Before(denialOf[V](oldest).Until) {
			break
		}
		x.remove(oldest)
	}
	questions := x.owners[d.Owner]
	if questions == nil {
		questions = make(map[Question]*list.Element)
		x.owners[d.Owner] = questions
	}
	questions[d.Question] = x.age.PushFront(&d)
	x.bytes += d.Bytes
}

// Has reports whether any denial of an owner is kept: if not, no question of it has to be
// digested.
func (x *Exhaustion[V]) Has(owner string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.owners[owner] != nil
}

// Recall returns what denies a question now.
func (x *Exhaustion[V]) Recall(owner string, q Question, now time.Time) (value V, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	found := x.owners[owner][q]
	if found == nil {
		return value, false
	}
	if d := denialOf[V](found); now.Before(d.Until) {
		return d.Value, true
	}
	x.remove(found)
	return value, false
}

// Forget drops every denial of an owner: something may have been given back.
func (x *Exhaustion[V]) Forget(owner string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.owners[owner] {
		x.remove(e)
	}
}

// Len returns how many denials are kept, those that are over included.
func (x *Exhaustion[V]) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.age.Len()
}

func (x *Exhaustion[V]) remove(e *list.Element) {
	if e == nil {
		return
	}
	d := denialOf[V](e)
	x.age.Remove(e)
	x.bytes -= d.Bytes
	questions := x.owners[d.Owner]
	delete(questions, d.Question)
	if len(questions) == 0 {
		delete(x.owners, d.Owner)
	}
}

func denialOf[V any](e *list.Element) *Denial[V] { return e.Value.(*Denial[V]) }
