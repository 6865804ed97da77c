/* The states of a message, in the order of the table in core/states.py, and why messages fail (core/reasons.py). */

export const STATES = {
  draft: "has an id, and no content yet",
  delayed: "not ready before a given time: the producer's delay, or the backoff after a failure",
  held: "waits until an earlier message of its group is finished",
  ready: "may be leased; smallest priority first, then order of arrival",
  claimed: "a consumer has its id, and has not fetched its content yet",
  leased: "a consumer has it until the lease ends",
  dead: "failed finally: out of attempts, rejected, expired or invalid; kept as a dead letter with its reason",
  parked: "set aside by an operator, or failed finally where dead letters are off; an operator decides",
  done: "acknowledged; kept as history if the queue keeps history",
  dropped: "removed without being processed: by a command, its time to live, a quota, retention or a purge",
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
