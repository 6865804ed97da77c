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
  VALIDATION_ERROR: "the message does not match its schema, or its envelope is invalid",
  HANDLER_ERROR: "the consumer reported that processing failed",
  TIMEOUT: "processing took too long: the lease expired, or the consumer reported a timeout",
  RETRY_LIMIT: "no attempts are left, and no other reason is known",
  POISON: "the message failed repeatedly for the same reason",
  REJECTED: "the consumer rejected the message: no retry can succeed",
  EXPIRED: "its time to live ended before it was leased",
  CORRUPT: "its stored bytes cannot be read, or are not those that were sent",
};
