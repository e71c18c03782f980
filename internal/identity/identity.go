package identity

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Prefix lengths of a subject that a Config leaves at zero.
const (
	ipv4BitsDefault = 32
	ipv6BitsDefault = 64 // what a network gives to one customer at the least
)

// hopsMax bounds how far a list of hops is walked. A chain of proxies has a few.
const hopsMax = 100

// ErrPeer says that the address of the direct peer is none.
var ErrPeer = errors.New("not an IP address, with or without a port")

// Config says whom to believe, and how addresses are grouped. Zero lengths take their
// defaults, 32 and 64.
type Config struct {
	TrustedProxies []netip.Prefix // as ParsePrefixes returns them
	IPv4Bits       int            // 1 to 32
	IPv6Bits       int            // 1 to 128
}

// Validate reports a length that no address has.
func (c Config) Validate() error {
	var errs []error
	if c.IPv4Bits < 0 || c.IPv4Bits > 32 {
		errs = append(errs, errors.New("the IPv4 prefix must be 1 to 32 bits long"))
	}
	if c.IPv6Bits < 0 || c.IPv6Bits > 128 {
		errs = append(errs, errors.New("the IPv6 prefix must be 1 to 128 bits long"))
	}
	return errors.Join(errs...)
}

// A Resolver finds the client's subject. The zero value trusts no proxy and groups by the
// default lengths.
type Resolver struct{ config Config }

// New returns a resolver, or what is wrong with c.
func New(c Config) (Resolver, error) {
	if err := c.Validate(); err != nil {
		return Resolver{}, fmt.Errorf("identity: %w", err)
	}
	return Resolver{c}, nil
}

// Subject returns whom a request came from. peer is the address at the other end of the
// connection, with or without a port; forwardedFor holds the values of the header
// X-Forwarded-For in their order. It returns [ErrPeer] if peer is no address.
func (r Resolver) Subject(peer string, forwardedFor []string) (string, error) {
	client, ok := parseHop(peer)
	if !ok {
		return "", ErrPeer
	}
	hops := hopsOf(forwardedFor)
	for range hopsMax {
		if !r.trusts(client) {
			break
		}
		hop, ok := hops.last()
		if !ok {
			break
		}
		further, ok := parseHop(hop)
		if !ok {
			break // whoever wrote this, it names nobody; nor can what is before it be believed
		}
		client = further
	}
	return r.text(client), nil
}

func (r Resolver) trusts(a netip.Addr) bool {
	for _, p := range r.config.TrustedProxies {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// text is the one text of an address's group: the address if it is one of its own, else
// the prefix.
func (r Resolver) text(a netip.Addr) string {
	bits := r.config.IPv6Bits
	switch {
	case a.Is4() && r.config.IPv4Bits == 0:
		bits = ipv4BitsDefault
	case a.Is4():
		bits = r.config.IPv4Bits
	case bits == 0:
		bits = ipv6BitsDefault
	}
	if bits == a.BitLen() {
		return a.String()
	}
	return netip.PrefixFrom(a, bits).Masked().String()
}

// hops is a list of hops that is read from its right end, over all header lines.
type hops struct {
	lines []string
	rest  string // of the last line
}

func hopsOf(lines []string) hops {
	h := hops{lines: lines}
	h.next()
	return h
}

func (h *hops) next() {
	if len(h.lines) > 0 {
		h.lines, h.rest = h.lines[:len(h.lines)-1], h.lines[len(h.lines)-1]+","
	}
}

// last takes the last hop. One that is empty is a hop that names nobody.
func (h *hops) last() (hop string, ok bool) {
	if h.rest == "" {
		h.next()
	}
	before, found := strings.CutSuffix(h.rest, ",")
	if !found {
		return "", false
	}
	comma := strings.LastIndexByte(before, ',')
	h.rest = before[:comma+1]
	return before[comma+1:], true
}

// parseHop reads an address as proxies write it: alone, in brackets, or with a port. A zone
// means nothing beyond its host, and is left out; an IPv4 address in IPv6 form is the IPv4
// address.
func parseHop(text string) (netip.Addr, bool) {
	text = strings.Trim(text, " \t")
	addr, err := netip.ParseAddr(text)
	if inner, bracketed := strings.CutPrefix(text, "["); err != nil && bracketed && strings.HasSuffix(inner, "]") {
		addr, err = netip.ParseAddr(inner[:len(inner)-1])
		if err == nil && addr.Is4() {
			return netip.Addr{}, false
		}
	}
	if err != nil {
		var withPort netip.AddrPort
		withPort, err = netip.ParseAddrPort(text)
		addr = withPort.Addr()
	}
	return addr.WithZone("").Unmap(), err == nil
}

// ParsePrefixes reads trusted proxies: CIDR prefixes and single addresses. It returns every
// fault, joined. A prefix that holds every address is one: a client could then be anyone.
func ParsePrefixes(texts []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	var errs []error
	for _, text := range texts {
		p, err := parsePrefix(strings.TrimSpace(text))
		if err != nil {
			errs = append(errs, fmt.Errorf("trusted proxy %q: %w", text, err))
			continue
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, errors.Join(errs...)
}

func parsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && !strings.Contains(text, "/") { // not even in a zone
		addr = addr.WithZone("").Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, errors.New("must be an address or a CIDR prefix, such as 10.0.0.0/8 or 2001:db8::/32")
	}
	const mappedBits = 96 // in front of an IPv4 address in IPv6 form
	if p.Addr().Is4In6() && p.Bits() >= mappedBits {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mappedBits)
	}
	switch {
	case p.Bits() == 0:
		return netip.Prefix{}, errors.New("must not be all addresses: a client could name any as its own")
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("must have no bits beyond its length: %s", p.Masked())
	}
	return p, nil
}
