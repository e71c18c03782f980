package loadgen

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

const (
	// AnswerMax is how long an answer may take: longer than an instance works on one.
	AnswerMax = 50 * time.Second
	// BatchMax is how many items a batch may have.
	BatchMax = 1000
	// SkewMax is far beyond what makes one tenant get nearly all.
	SkewMax = 10
	// redialAfter is what a caller waits after a connection has failed, so that it does
	// not spin.
	redialAfter = 100 * time.Millisecond
)

// A Client asks running instances to consume. The zero value is refused.
type Client struct {
	URLs   []string // of the instances; callers are spread over them
	TLS    *tls.Config
	Token  string
	Items  []Item  // what is asked, one chosen at random for each request
	Skew   float64 // the nth item is chosen as often as 1/n to this power; 0: all alike
	Batch  int     // items a call; 0 and 1: one, by itself
	Keys   bool    // send an idempotency key, a new one each time
	Strict bool    // a failure ends the run
}

// An Item is one request to consume.
type Item struct {
	Tenant string
	Body   string // a JSON object
}

// prepare makes what all callers share.
func (c *Client) prepare() (*client, error) {
	if len(c.URLs) == 0 || len(c.Items) == 0 || c.Batch < 0 || c.Batch > BatchMax || c.Skew < 0 || c.Skew > SkewMax {
		return nil, fmt.Errorf("a load needs an instance, items, batches of up to %d, and a skew of up to %d", BatchMax, SkewMax)
	}
	shared := &client{Client: c, pick: newPicker(len(c.Items), c.Skew), run: uuid.New().String()}
	for _, text := range c.URLs {
		i, err := newInstance(text, c)
		if err != nil {
			return nil, err
		}
		shared.instances = append(shared.instances, i)
	}
	for _, item := range c.Items {
		shared.targets = append(shared.targets, newTarget(item))
	}
	return shared, nil
}

// Run sends as d says.
func (c *Client) Run(ctx context.Context, d Drive) (Measurement, error) {
	shared, err := c.prepare()
	if err != nil {
		return Measurement{}, err
	}
	var all []*caller
	defer func() {
		for _, one := range all {
			one.close()
		}
	}()
	return d.Run(ctx, func(ctx context.Context, i int) (Caller, error) {
		one := shared.caller(i)
		all = append(all, one)
		if err := one.dial(ctx); err != nil && c.Strict {
			return nil, err
		}
		return one.call, nil
	})
}

// eachCallers send what is to be sent once.
const eachCallers = 32

// Each asks once for each item, and ends with the first failure if strict.
func (c *Client) Each(ctx context.Context) (counts Counts, err error) {
	shared, err := c.prepare()
	if err != nil {
		return counts, err
	}
	var mu sync.Mutex
	var next int
	take := func() []target { // the next call's
		mu.Lock()
		defer mu.Unlock()
		from := next
		next = min(len(shared.targets), from+max(1, c.Batch))
		return shared.targets[from:next]
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range eachCallers {
		group.Go(func() error {
			one := shared.caller(i)
			defer one.close()
			for targets := take(); len(targets) > 0; targets = take() {
				one.asked = one.asked[:0]
				for i := range targets {
					one.asked = append(one.asked, &targets[i])
				}
				outcome, err := one.ask(ctx)
				if err != nil {
					return err
				}
				mu.Lock()
				counts.add(outcome.Counts)
				mu.Unlock()
			}
			return nil
		})
	}
	err = group.Wait()
	return counts, err
}

// client is a Client with what is made before a run.
type client struct {
	*Client
	instances []*instance
	targets   []target
	pick      picker
	run       string // begins its idempotency keys
}

// An instance is where a request goes, and how it begins.
type instance struct {
	address string
	tls     *tls.Config // nil for plain HTTP
	head    []byte
}

// ParseURL reads where an instance is.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("%q must be a URL like http://host:port or https://host, without a query and a user", text)
	}
	return u, nil
}

func newInstance(text string, c *Client) (*instance, error) {
	u, err := ParseURL(text)
	if err != nil {
		return nil, err
	}
	i := &instance{address: u.Host}
	port := "80"
	if u.Scheme == "https" {
		port, i.tls = "443", &tls.Config{MinVersion: tls.VersionTLS12}
		if c.TLS != nil {
			i.tls = c.TLS.Clone()
		}
		i.tls.ServerName = u.Hostname()
	}
	if u.Port() == "" {
		i.address = net.JoinHostPort(u.Hostname(), port)
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/") + "/v1/consume"
	if c.Batch > 1 {
		path += "/batch"
	}
	i.head = fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n",
		path, u.Host, c.Token)
	return i, nil
}

// A caller has one keep-alive connection.
type caller struct {
	*client
	instance *instance
	conn     net.Conn // nil when there is none
	cut      func() bool
	reader   *bufio.Reader
	random   *rand.Rand
	number   int
	sent     int64
	request  []byte
	asked    []*target
	answer   answer
}

func (c *client) caller(i int) *caller {
	return &caller{client: c, instance: c.instances[i%len(c.instances)], number: i, random: rand.New(rand.NewPCG(2, uint64(i)))}
}

func (c *caller) dial(ctx context.Context) error {
	dialer := net.Dialer{Timeout: AnswerMax}
	conn, err := dialer.DialContext(ctx, "tcp", c.instance.address)
	if err != nil {
		return err
	}
	if c.instance.tls != nil {
		secured := tls.Client(conn, c.instance.tls)
		if err := secured.HandshakeContext(ctx); err != nil {
			conn.Close()
			return err
		}
		conn = secured
	}
	c.conn, c.reader = conn, bufio.NewReader(conn)
	c.cut = context.AfterFunc(ctx, func() { conn.Close() })
	return nil
}

func (c *caller) close() {
	if c.conn != nil {
		c.cut()
		c.conn.Close()
		c.conn = nil
	}
}

// call asks for items that are chosen at random.
func (c *caller) call(ctx context.Context) (Outcome, error) {
	c.asked = c.asked[:0]
	for range max(1, c.Batch) {
		c.asked = append(c.asked, &c.targets[c.pick.pick(c.random)])
	}
	return c.ask(ctx)
}

// ask makes a call.
func (c *caller) ask(ctx context.Context) (Outcome, error) {
	c.compose()
	err := c.exchange(ctx)
	var outcome Outcome
	if err == nil {
		outcome = c.judge()
		if c.answer.close {
			c.close()
		}
	} else {
		c.close()
		if ctx.Err() != nil {
			return Outcome{}, ctx.Err()
		}
		outcome = failed(kindOf(err), int64(len(c.asked)), err.Error())
	}
	if outcome.Failed == 0 {
		return outcome, nil
	}
	if c.Strict {
		f := outcome.Failures[0]
		return outcome, fmt.Errorf("%s: %s", f.Kind, f.Example)
	}
	if err != nil {
		return outcome, pause(ctx, redialAfter)
	}
	return outcome, nil
}

// exchange sends the request and reads the answer.
func (c *caller) exchange(ctx context.Context) error {
	if c.conn == nil {
		if err := c.dial(ctx); err != nil {
			return err
		}
	}
	if err := c.conn.SetDeadline(time.Now().Add(AnswerMax)); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	return c.answer.read(c.reader)
}

// compose writes the request for what is asked.
func (c *caller) compose() {
	length := 0
	for _, t := range c.asked {
		length += len(t.body)
	}
	b := append(c.request[:0], c.instance.head...)
	if c.Batch > 1 {
		c.request = c.batch(b, length)
		return
	}
	if c.Keys {
		b = append(c.key(append(b, `Idempotency-Key: "`...)), "\"\r\n"...)
	}
	b = strconv.AppendInt(append(b, "Content-Length: "...), int64(length), 10)
	c.request = append(append(b, "\r\n\r\n"...), c.asked[0].body...)
}

const (
	batchBegin = `{"items":[`
	batchEnd   = `]}`
	keyMember  = `,"idempotency_key":"`
	numberLen  = 20 // of a key's two numbers together
)

// batch appends the rest of a request of several items, whose bodies are so long.
func (c *caller) batch(b []byte, length int) []byte {
	items := len(c.asked)
	length += len(batchBegin) + items - 1 + len(batchEnd)
	if c.Keys {
		length += items * (len(keyMember) + len(c.run) + numberLen + len(`"`))
	}
	b = strconv.AppendInt(append(b, "Content-Length: "...), int64(length), 10)
	b = append(append(b, "\r\n\r\n"...), batchBegin...)
	for i, t := range c.asked {
		if i > 0 {
			b = append(b, ',')
		}
		if !c.Keys {
			b = append(b, t.body...)
			continue
		}
		b = append(append(b, t.body[:len(t.body)-1]...), keyMember...)
		b = append(c.key(b), `"}`...)
	}
	return append(b, batchEnd...)
}

// key appends a new idempotency key, always as long.
func (c *caller) key(b []byte) []byte {
	c.sent++
	b = append(b, c.client.run...)
	return fmt.Appendf(b, "-%05d-%013d", c.number, c.sent)
}

// kindOf names a fault of a connection without its addresses.
func kindOf(err error) string {
	for _, known := range []struct {
		err  error
		kind string
	}{
		{errAnswer, "not an answer"},
		{os.ErrDeadlineExceeded, "no answer in time"},
		{syscall.ECONNREFUSED, "connection refused"},
		{syscall.ECONNRESET, "connection reset"},
		{syscall.EPIPE, "connection closed"},
		{io.EOF, "connection closed"},
		{io.ErrUnexpectedEOF, "connection closed"},
	} {
		if errors.Is(err, known.err) {
			return known.kind
		}
	}
	return "connection failed"
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
