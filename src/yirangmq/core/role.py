"""Active or standby: from what was heard, the term and the time to a decision, with the evidence for it.

Knows: the five steps, terms, the cooldown, what a witness says. Does not know: sockets, clocks, stores; who asks and
remembers is ``core.partner``."""

from yirangmq.core.pairing import Decision, Own, Pace, Peer, Probe, Role, Status, Step, Verdict, Witness


def seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s"


def decide(pace: Pace, own: Own, peer: Peer | None, probe: Probe, witness: Witness, now: int) -> Decision:
    """What this node does now. The same values give the same decision."""
    known = max(own.term, own.granted, peer.term if peer else 0)
    if own.status is not Status.RUNNING:
        return Decision(
            Verdict.STAY, known, (Step("own status", f"{own.status}: a node that does not run decides nothing"),)
        )
    if own.role is Role.ACTIVE:
        return _active(pace, own, peer, witness, now, known)
    return _standby(pace, own, peer, probe, witness, now, known)


# -- an active node -------------------------------------------------------------------------------------------------


def _active(pace: Pace, own: Own, peer: Peer | None, witness: Witness, now: int, known: int) -> Decision:
    away = now - own.looked_at
    if away > pace.timeout:
        why = f"this node did not run for {seconds(away)}, longer than {seconds(pace.timeout)}: the peer may be active"
        return Decision(Verdict.STAND_DOWN, known, (Step("frozen", why),))
    if peer is not None and peer.term > own.term:
        why = f"{peer.node} has term {peer.term}, ours is {own.term}: the older term stands down"
        return Decision(Verdict.STAND_DOWN, known, (Step("term", why), *_heard(peer, now)))
    if pace.has_witness and (own.assured_at is None or now - own.assured_at >= pace.lease):
        why = f"neither the witness nor the peer has had us as active for {seconds(pace.lease)}"
        return Decision(Verdict.STAND_DOWN, known, (Step("witness", f"{witness}: {why}"),))
    if peer is None or now - peer.at > pace.timeout:
        return Decision(Verdict.STAY, known, (Step("peer", "silent: this node goes on"),))
    if peer.role is Role.ACTIVE and peer.term == own.term:
        return _same_term(pace, own, peer, now)
    if peer.role is Role.STANDBY and peer.wish and peer.status is Status.RUNNING:
        return Decision(Verdict.HAND_OVER, known + 1, (Step("order", f"{peer.node} was ordered to take over"),))
    return Decision(Verdict.STAY, known, (Step("peer", f"{peer.node} is {peer.role} in term {peer.term}"),))


def _same_term(pace: Pace, own: Own, peer: Peer, now: int) -> Decision:
    """Both took the same term while they could not hear each other. Who has been active clearly longer takes a higher
    one; if neither has, the larger name stands down. Whatever each believes, one remains."""
    ahead = (now - own.active_since) - peer.active
    found = (
        f"both are active in term {own.term}; we {seconds(now - own.active_since)}, {peer.node} {seconds(peer.active)}"
    )
    if ahead > pace.interval:
        return Decision(
            Verdict.TAKE_OVER, own.term + 1, (Step("term", f"{found}: the longer one takes a higher term"),)
        )
    if own.node > peer.node and ahead >= -pace.interval:
        return Decision(Verdict.STAND_DOWN, own.term, (Step("term", f"{found}: the larger name stands down"),))
    return Decision(Verdict.STAY, own.term, (Step("term", f"{found}: the other one gives way"),))


# -- a standby ------------------------------------------------------------------------------------------------------


def _standby(pace: Pace, own: Own, peer: Peer | None, probe: Probe, witness: Witness, now: int, known: int) -> Decision:
    if peer is None:
        return _alone(pace, own, probe, witness, now, known)
    if now - peer.at <= pace.timeout:
        return _in_contact(pace, own, peer, witness, now, known)
    return _silent(pace, own, peer, probe, witness, now, known)


def _alone(pace: Pace, own: Own, probe: Probe, witness: Witness, now: int, known: int) -> Decision:
    """The peer was never heard since this node started."""
    since = now - own.started_at
    if since <= pace.timeout and not own.order:
        return _stay(
            known, Step("1 heartbeats", f"none heard yet, listening for {seconds(since)} of {seconds(pace.timeout)}")
        )
    order = (_ordered(),) if own.order else ()
    steps = (*order, Step("1 heartbeats", f"none heard in the {seconds(since)} since the start"))
    return _by_test(pace, own, probe, witness, known, (*steps, Step("2 last status", "unknown: never heard")))


def _in_contact(pace: Pace, own: Own, peer: Peer, witness: Witness, now: int, known: int) -> Decision:
    steps = _heard(peer, now)
    if peer.role is Role.ACTIVE:
        if own.order:
            return Decision(Verdict.CLAIM, known + 1, (_ordered(), *steps))
        return _stay(known, *steps)
    if peer.grant > max(own.term, own.granted) and peer.grant >= peer.term:
        if pace.has_witness and (own.assured_at is None or now - own.assured_at >= pace.lease):
            return _stay(
                known, *steps, Step("consent", f"of {peer.node} to term {peer.grant}, but not to us as we are now")
            )
        found = f"{peer.node} consents to term {peer.grant}"
        return Decision(Verdict.TAKE_OVER, peer.grant, (*_order(own), *steps, Step("consent", found)))
    if peer.status in (Status.STOPPING, Status.STOPPED):
        if own.order:
            return _over_a_stopped_one(pace, own, peer, witness, known, steps)
        return _stay(known, *steps, Step("2 last status", f"{peer.status}, by hand: no takeover unless ordered"))
    return _between_two_standbys(own, peer, now, known, steps)


def _between_two_standbys(own: Own, peer: Peer, now: int, known: int, steps: tuple[Step, ...]) -> Decision:
    """Nobody is active. Who has run longer asks for consent, the other gives it; as long: the smaller name."""
    ours, theirs = now - own.started_at, peer.running
    found = f"ours {seconds(ours)}, of {peer.node} {seconds(theirs)}"
    wants = own.order or (not peer.wish and (ours, peer.node) > (theirs, own.node))
    yields = peer.claim > own.term and (not wants or (own.order == peer.wish and peer.node < own.node))
    if yields:
        return Decision(
            Verdict.GRANT, peer.claim, (*steps, Step("4 running time", f"{found}: {peer.node} may be active"))
        )
    if wants:
        return Decision(
            Verdict.CLAIM, known + 1, (*_order(own), *steps, Step("4 running time", f"{found}: we ask for consent"))
        )
    return _stay(known, *steps, Step("4 running time", f"{found}: we wait for {peer.node}"))


def _over_a_stopped_one(
    pace: Pace, own: Own, peer: Peer, witness: Witness, known: int, steps: tuple[Step, ...]
) -> Decision:
    """It said that it stops, and is not to be waited for."""
    if peer.status is Status.STOPPING:
        return _stay(known, *steps, Step("2 last status", "STOPPING: it is still finishing its work"))
    return _with_witness(pace, witness, known, (_ordered(), *steps))


def _silent(pace: Pace, own: Own, peer: Peer, probe: Probe, witness: Witness, now: int, known: int) -> Decision:
    """The five steps."""
    age = now - peer.at
    missed = (
        f"missed {age // pace.interval}: the last of {peer.node} is {seconds(age)} old, over {seconds(pace.timeout)}"
    )
    steps: tuple[Step, ...] = (*_order(own), Step("1 heartbeats", missed))
    judged = Step("2 last status", f"{peer.status}, {peer.role} in term {peer.term}")
    if peer.status in (Status.STOPPING, Status.STOPPED) and not own.order:
        return _stay(known, *steps, judged._replace(found=f"{peer.status}, by hand: no takeover unless ordered"))
    if peer.status is Status.STARTING and age <= 2 * pace.timeout and not own.order:
        return _stay(
            known, *steps, judged._replace(found=f"STARTING: given until {seconds(2 * pace.timeout)} to come up")
        )
    steps = (*steps, judged)
    if own.switched_at is not None and now - own.switched_at < pace.cooldown and not own.order:
        left = pace.cooldown - (now - own.switched_at)
        return _stay(
            known,
            *steps,
            Step("cooldown", f"the last switch is {seconds(now - own.switched_at)} ago; {seconds(left)} left"),
        )
    return _by_test(pace, own, probe, witness, known, steps)


def _by_test(pace: Pace, own: Own, probe: Probe, witness: Witness, known: int, steps: tuple[Step, ...]) -> Decision:
    """Step 3. An answer counts as heard, so that a peer that can be reached is judged by what it says (step 4)."""
    if probe is Probe.NONE:
        return Decision(Verdict.PROBE, known, steps)
    if probe is Probe.REACHED:
        return _stay(
            known, *steps, Step("3 connection", "answered: the link of the heartbeats is broken, not the node")
        )
    return _with_witness(pace, witness, known, (*steps, Step("3 connection", "no answer at the peer's TCP port")))


def _with_witness(pace: Pace, witness: Witness, known: int, steps: tuple[Step, ...]) -> Decision:
    if not pace.has_witness:
        return Decision(Verdict.TAKE_OVER, known + 1, steps)
    if witness is Witness.OURS:
        return Decision(Verdict.TAKE_OVER, known + 1, (*steps, Step("witness", "ours")))
    if witness is Witness.FREE:
        return Decision(Verdict.ASK_WITNESS, known + 1, (*steps, Step("witness", "free: asked")))
    found = "the peer has it" if witness is Witness.THEIRS else "cannot be read"
    return _stay(known, *steps, Step("witness", f"{found}: no takeover"))


# -- words ----------------------------------------------------------------------------------------------------------


def _stay(term: int, *steps: Step) -> Decision:
    return Decision(Verdict.STAY, term, steps)


def _heard(peer: Peer, now: int) -> tuple[Step, ...]:
    return (Step("heard", f"{peer.node} {seconds(now - peer.at)} ago: {peer.role}, {peer.status}, term {peer.term}"),)


def _ordered() -> Step:
    return Step("order", "by an operator")


def _order(own: Own) -> tuple[Step, ...]:
    return (_ordered(),) if own.order else ()
