"""What a node of a pair does with its decisions: one look at a time, over a few things that the outside can do.

Knows: the order of things, such as: a term is on disk before it is used. Does not know: how any of it is done."""

from collections.abc import Callable
from typing import Protocol

from yirangmq.core.beat import Beat
from yirangmq.core.pairing import Decision, Probe, Role, Status, Verdict, Witness
from yirangmq.core.partner import Heard, Partner
from yirangmq.core.witness import Wish


class Outside(Protocol):
    def save(self, term: int) -> None:
        """On disk when it returns."""

    def probe(self) -> None:
        """Begin a test of the peer's TCP port; ``Conduct.probed`` is told how it went."""

    def hand_over(self, decision: Decision) -> None:
        """Begin to finish what is in work; ``Conduct.handed_over`` when that is done."""

    def say(self) -> None:
        """Send a heartbeat now: something changed that the peer should know."""

    def changed(self, decision: Decision, was: Role) -> None:
        """The role or the term is another now; ``decision`` says why."""


class Conduct:
    def __init__(self, partner: Partner, outside: Outside, saved: int) -> None:
        self.partner = partner
        self._outside = outside
        self._saved = saved
        self._probe = Probe.NONE
        self._probed_at = 0
        self._probing = False
        self.witness = Witness.NONE
        self.asks_witness = False
        self._handing_over = 0
        self._doubted_at = 0
        self.latest: Decision | None = None
        """The last thing it decided."""

    # -- the witness ----------------------------------------------------------------------------------------------

    @property
    def wish(self) -> Wish:
        """What to ask of the witness at the next exchange."""
        if self.partner.own.status is Status.STOPPED:
            return Wish.GIVE_BACK
        is_active = self.partner.own.role is Role.ACTIVE
        return Wish.HOLD if is_active or self.asks_witness else Wish.GIVE_BACK

    @property
    def wish_term(self) -> int:
        """The term to ask for it with: the one in force, or the one that is meant to be."""
        asked = self.latest.term if self.asks_witness and self.latest is not None else 0
        return max(asked, self.partner.own.term)

    def witnessed(self, found: Witness, begun_at: int, term: int) -> None:
        """An exchange that began at ``begun_at`` has ended so; ``term``: the highest of another that it has seen."""
        self.witness = found
        if term > self.partner.own.term and self.partner.own.role is Role.STANDBY:
            self._keep(term)
            self.partner.learn(term)
        if found is Witness.OURS:
            self.partner.assured(begun_at)

    # -- hearing --------------------------------------------------------------------------------------------------

    def hear(self, beat: Beat, now: int, wall: int) -> Heard:
        """What follows from it is done at once. A life that is new to us is answered at once; so is one that we cannot
        believe yet: if it lives it hears us, and shows it."""
        known = self.partner.peer_boot
        found = self.partner.hear(beat, now, wall)
        if found is Heard.TAKEN:
            self.look(now)
            if known != self.partner.peer_boot:
                self._outside.say()
        elif found is Heard.STRANGE and now - self._doubted_at > self.partner.pace.interval // 10:
            self._doubted_at = now
            self._outside.say()
        return found

    # -- looking --------------------------------------------------------------------------------------------------

    def look(self, now: int) -> Decision:
        partner = self.partner
        decision = partner.look(now, self._probe_at(now), self.witness)
        self.latest = decision
        self.asks_witness = decision.verdict is Verdict.ASK_WITNESS
        if decision.verdict is not Verdict.CLAIM:
            partner.claim = 0
        _ACTS[decision.verdict](self, decision, now)
        return decision

    def _probe_at(self, now: int) -> Probe:
        """A test says something for one interval, unless the peer was heard since."""
        peer = self.partner.peer
        is_old = now - self._probed_at > self.partner.pace.interval
        if is_old or (peer is not None and peer.at >= self._probed_at):
            return Probe.NONE
        return self._probe

    def probed(self, found: Probe, now: int) -> None:
        self._probing, self._probe, self._probed_at = False, found, now

    def _stay(self, decision: Decision, now: int) -> None:
        if decision.term > max(self.partner.own.term, self.partner.own.granted):
            self._keep(decision.term)
            self.partner.learn(decision.term)

    def _begin_probe(self, decision: Decision, now: int) -> None:
        if not self._probing:
            self._probing = True
            self._outside.probe()

    def _claim(self, decision: Decision, now: int) -> None:
        if self.partner.claim != decision.term:
            self.partner.claim = decision.term
            self._outside.say()

    def _grant(self, decision: Decision, now: int) -> None:
        if self.partner.own.granted < decision.term:
            self._keep(decision.term)
            self.partner.grant(decision.term)
            self._outside.say()

    def _ask(self, decision: Decision, now: int) -> None:
        """``wish`` says it at the next exchange."""

    def _take_over(self, decision: Decision, now: int) -> None:
        was = self.partner.own.role
        self._keep(decision.term)
        self.partner.take_over(decision.term, now)
        self._outside.changed(decision, was)
        self._outside.say()

    def _stand_down(self, decision: Decision, now: int) -> None:
        was = self.partner.own.role
        self._handing_over = 0
        self._keep(decision.term)
        self.partner.learn(decision.term)
        self.partner.stand_down(now)
        self._outside.changed(decision, was)
        self._outside.say()

    def hand_over(self, decision: Decision, now: int) -> None:
        """By order of this node's own operator."""
        self._hand_over(decision, now)

    def _hand_over(self, decision: Decision, now: int) -> None:
        if not self._handing_over:
            self._handing_over = decision.term
            self._outside.hand_over(decision)

    def handed_over(self, decision: Decision, now: int) -> None:
        """What was in work is finished: the peer may have the term, and this node stands by."""
        self._handing_over = 0
        if self.partner.own.role is not Role.ACTIVE:
            return  # it had to stand down before
        self._keep(decision.term)
        self.partner.grant(decision.term)
        self.partner.stand_down(now)
        self._outside.changed(decision, Role.ACTIVE)
        self._outside.say()

    def _keep(self, term: int) -> None:
        if term > self._saved:
            self._outside.save(term)
            self._saved = term


_ACTS: dict[Verdict, Callable[[Conduct, Decision, int], None]] = {
    Verdict.STAY: Conduct._stay,
    Verdict.PROBE: Conduct._begin_probe,
    Verdict.CLAIM: Conduct._claim,
    Verdict.GRANT: Conduct._grant,
    Verdict.ASK_WITNESS: Conduct._ask,
    Verdict.TAKE_OVER: Conduct._take_over,
    Verdict.HAND_OVER: Conduct._hand_over,
    Verdict.STAND_DOWN: Conduct._stand_down,
}
