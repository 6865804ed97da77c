"""Broker: queue operations, group commit, admission control, dispatch and schedules, above any store.

An operation loads messages, decides by the pure rules of ``core``, and swaps them. All waiting requests share a store
transaction. Stores come in through ``core.ports``; nothing here depends on the kind of store or on a protocol."""
