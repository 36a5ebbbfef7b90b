-- How a caller that shows a token gets a permit, a lease and a slice; see acquire.
-- @include lib/core/state.lua
-- @include lib/permits/first_permit.lua
-- @include lib/permits/permits.lua
-- @include lib/gate/gate.lua
-- @include lib/entries/inline_bodies.lua
-- @include lib/permits/mint.lua
-- @include lib/entries/retry_queue.lua
-- @include lib/entries/take_slice.lua
-- @include lib/gate/refusal.lua

-- `claim`: k, g, op, worker, started, count, shared, allowance and wait, as acquire takes them.
local function acquire(state, now, claim)
  local k, g, op = claim.k, claim.g, claim.op
  local permit = k == "0" and is_first_waiting(state) and first_permit(state) or read_permit(k)
  if permit.kind == "h" and permit.op == op and permit.g == g then
    redis.call("ZADD", leases, "XX", now + state.lease_ms, k)
    local entries, attempt = taken_before(state, consumer_of(permit, k))
    return granted(state, now, permit, attempt, entries, queued_tokens(state, now))
  end
  if permit.kind ~= "q" or permit.g ~= g then
    return {"stale"}
  end
  state.has_no_retries = state.few > 0 or redis.call("EXISTS", retries) == 0  -- no retry waits, and none will before this ends
  local due, is_uncharged = due_retry(state, now)
  if claim.shared == "1" and due and not is_uncharged then
    return {"alone"}
  end
  local word = refusal(state, now)
  if word == "ok" and state.gate.rates ~= "" and not claim.allowance then
    local most = due and not is_uncharged and 1 or math.ceil(ready(state, now) / state.limit)
    return {"rated", state.gate.rates, math.min(claim.count, most), state.gate.is_limited and 1 or 0}
  end
  unqueue(state, k)
  if word == "ok" and claim.allowance == 0 then
    word = "limited"
  elseif word == "ok" and claim.allowance then
    claim.count = math.min(claim.count, claim.allowance)
    if state.gate.opens > 0 then
      set_gate(state, 0)
    end
  end
  if word ~= "ok" then
    park(state, k)
    if word == "limited" then  -- the permit is parked before the others are looked at
      close_gate(state, now, now + claim.wait, true)
    end
    local tokens = mint(state, now)
    save_state(state)
    return {word, tokens}
  end
  -- Never below the clock in µs. So a fence is new even if a failover lost the last ones. Nor below `born`, which is after
  -- `now` if a former life of the id began in this ms: so a lease shows that the request has started.
  state.seq = math.max(state.seq + 1, 1000 * math.max(now, state.born))
  permit = {fence = string.format("%d", state.seq), g = g, op = op, started = claim.started, worker = claim.worker,
    shared = claim.shared == "1" and "1" or ""}
  -- The lease is written first: if a later command is refused, reap drops a lease without a permit and gives its slice back.
  redis.call("ZADD", leases, string.format("%d", now + state.lease_ms), k)
  local entries, attempt = take_slice(state, now, consumer_of(permit, k), claim.count)
  if not entries then  -- the stream was deleted: nothing can be taken, doctor names it
    redis.call("ZREM", leases, k)
    return {"gone"}
  end
  permit.owed = #entries
  local is_row = entries[1] and (#entries == 1 or not due)  -- else others may stand in between
  permit.first, permit.last = is_row and entries[1][1] or "", is_row and entries[#entries][1] or ""
  write_held(k, permit)
  state.held = state.held + 1
  local tokens = mint(state, now)
  save_state(state)
  return granted(state, now, permit, attempt, entries, tokens)
end
