-- The request's hash as a table. load_state() reads the hash once, at the start of a script. save_state() writes
-- the changed values once, at its end. Between the two calls the table is the truth. Many numbers share two
-- fields, because each field costs more memory and time than all of these:
--   policy = limit:priority:attempts:backoff_min:backoff_max:lease_ms:retain_ms:time_limit_ms:durable:deadline:born:shards
--   counts = seq:queued:high:fresh:total:done:dead:open:few:max_body:last_ms:sleep_due:sleeper:free
-- Only a request that must wait for a time, a rate or its tenant's turn has a third field: gate = opens|rates|limited|turn|wait,
-- see lib/gate/gate.lua.
-- @include lib/core/summary.lua
-- @include lib/gate/text.lua
local POLICY = "^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):([%d,]*)$"
local COUNTS = "^(%d+):(%-?%d+):(%d+):(%-?%d+):(%d+):(%d+):(%-?%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d*):(%d*)$"

local function load_state()
  local row = redis.call("HMGET", request, "state", "policy", "counts", "gate", "trace")
  if not row[1] or row[1] == "abandoned" then
    return nil
  end
  local limit, priority, attempts, backoff_min, backoff_max, lease_ms, retain_ms, time_limit_ms, durable, deadline, born, shards =
    string.match(row[2] or "", POLICY)
  local seq, queued, high, fresh, total, done, dead_ones, open, few_wait, max_body, last_ms, sleep_due, sleeper, free =
    string.match(row[3] or "", COUNTS)
  if not limit or not seq then  -- damage; nothing may be written over it
    error("BADSTATE the policy or the counts of " .. request .. " cannot be read", 0)
  end
  local n = tonumber
  local found = {
    state = row[1], limit = n(limit), priority = n(priority), attempts = n(attempts), backoff_min = n(backoff_min),
    backoff_max = n(backoff_max), lease_ms = n(lease_ms), retain_ms = n(retain_ms), time_limit_ms = n(time_limit_ms),
    durable = n(durable), deadline = n(deadline), born = n(born), seq = n(seq), queued = n(queued), high = n(high),
    fresh = n(fresh), total = n(total), done = n(done), dead = n(dead_ones), open = n(open), few = n(few_wait),
    max_body = n(max_body), last_ms = n(last_ms), sleep_due = n(sleep_due), sleeper = sleeper, free = free, shards = shards,
    gate = row[4] and read_gate(row[4]) or OPEN,
    held = few_wait == "1" and 0 or redis.call("ZCARD", leases),
  }
  if row[5] then  -- few have one: so the others do not pay for the field
    found.trace = row[5]
  end
  return found
end

-- string.format("%d") takes a tenth of the time of Lua's own conversion of a number.
local function policy_text(s)
  return string.format("%d:%d:%d:%d:%d:%d:%d:%d:%d:%d:%d:%s", s.limit, s.priority, s.attempts, s.backoff_min, s.backoff_max,
    s.lease_ms, s.retain_ms, s.time_limit_ms, s.durable, s.deadline, s.born, s.shards)
end

local function counts_text(s)
  return string.format("%d:%d:%d:%d:%d:%d:%d:%d:%d:%d:%d:%d:%s:%s", s.seq, s.queued, s.high, s.fresh, s.total, s.done,
    s.dead, s.open, s.few, s.max_body, s.last_ms, s.sleep_due, s.sleeper, s.free)
end

-- Writes the counts, and the fields and values `...`.
local function save_state(s, ...)
  redis.call("HSET", request, "state", s.state, "counts", counts_text(s), ...)
end

-- Returns the state of a request that has not ended, or nil and what the script returns instead.
local function load_unfinished()
  local state = load_state()
  if not state then
    return nil, {"gone"}
  end
  if is_ended(state) then
    return nil, {"ended", summary(state)}
  end
  return state
end
