/* The states of a message, in the order of the table in core/states.py, and why messages fail (core/reasons.py). */

export const STATES = {
  draft: "has an id, but no content yet",
  delayed: "not ready before a given time: a delay set by the producer, or the backoff after a failure",
  held: "waits until an earlier message of its group is finished",
  ready: "may be leased, lowest priority number first, then in order of arrival",
  claimed: "a consumer has its id, but has not fetched its content",
  leased: "reserved for a consumer until the lease ends",
  dead: "failed finally: out of attempts, rejected, expired or invalid; kept with the reason",
  parked: "set aside by an operator, or failed finally in a queue without dead letters",
  done: "acked; kept as history if the policy keeps history",
  dropped: "removed by a command, its time to live, a quota or a purge",
};

export const KEPT = Object.keys(STATES).filter((state) => state !== "dropped");

/** States in which a message can be dropped by a command. */
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
