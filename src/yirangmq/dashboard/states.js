/* The states of a message, in the order of the table in core/states.py, and why messages fail (core/reasons.py). */

export const STATES = {
  draft: "has an id, not yet its content",
  delayed: "waits for its time: a delay asked for, or the backoff after a failure",
  held: "waits behind another message of its group",
  ready: "may be taken, smallest priority first, then order of arrival",
  claimed: "a consumer has its id, not yet its content",
  leased: "a consumer has it until the lease ends",
  dead: "out of attempts or refused; kept with its reason among the dead letters",
  parked: "set aside by an operator, or given up where dead letters are off; moves only by name",
  done: "acknowledged; kept as history if the queue keeps history",
  dropped: "given up by hand, by age or by purge",
};

export const KEPT = Object.keys(STATES).filter((state) => state !== "dropped");

/** States out of which a message may be dropped by hand. */
export const DROPPABLE = KEPT.filter((state) => state !== "done");

export const REASONS = {
  VALIDATION_ERROR: "the message does not fit its schema, or its envelope is broken",
  HANDLER_ERROR: "the consumer said that its work failed",
  TIMEOUT: "it took too long: its lease lapsed, or the consumer said so",
  RETRY_LIMIT: "given up by count without a better reason",
  POISON: "failed again and again for the same reason",
  REJECTED: "the consumer said never to try again",
  EXPIRED: "its time to live ran out before it was taken",
  CORRUPT: "its stored bytes could not be read back, or are not those that were sent",
};
