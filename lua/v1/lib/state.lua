-- The request's hash as a table, which most scripts load first, then save last.

-- ------------------------------------------------------------------ digest

-- Returns how many chunks were submitted, and the digest over all of them. For one chunk it is `digest`.
local function chain_of()
  local row = redis.call("HMGET", request, "chunks", "chain", "digest")
  return tonumber(row[1]) or 1, row[2] or row[3] or ""
end

-- ------------------------------------------------------------------ note of a failure

-- Notes failed attempts in the request's hash for `status`: how many there were, and the last one as
-- "<ms> <head> <text>". The text is bounded. Unless something fails, nothing is written.
local FAILURE_PART = 768  -- of its beginning, which has the type of the error if its message is long; and of its end

local function note_failure(now, count, head, text)
  if #text > 2 * FAILURE_PART then
    text = string.sub(text, 1, FAILURE_PART) .. "\n[...]\n" .. string.sub(text, -FAILURE_PART)
  end
  redis.call("HINCRBY", request, "failures", count)
  redis.call("HSET", request, "failure", string.format("%d", now) .. " " .. head .. " " .. text)
end

-- ------------------------------------------------------------------ end

-- How a request stands or ended, read from its state.
-- Nothing of a request starts after its deadline; reap makes the rest of it dead.
local function is_overdue(state, now)
  return state.deadline > 0 and now >= state.deadline
end

local function is_ended(state)
  return state.state == "done" or state.state == "cancelled"
end

-- Returns what retire needs: state, born, total, done, dead, cancelled, ended, priority, reason, retain_ms, opened.
-- Here retain_ms is how long the id is known.
-- opened = "<reopened>:<since>", or "" if the request was never reopened. If this call has ended a request whose keys are in another
-- slot, what leaves them follows, as mint returns it.
local function summary(state)
  local cancelled, ended, reason = state.cancelled, state.ended, ""
  if not ended then  -- it ended before, or was stopped, and that has a reason
    cancelled, ended, reason = unpack(redis.call("HMGET", request, "cancelled", "ended", "reason"))
  end
  return {state.state, state.born, state.total, state.done, state.dead, tonumber(cancelled) or 0, tonumber(ended) or 0,
    state.priority, reason or "", state.known_ms or state.retain_ms, state.reopened and state.reopened .. ":" .. state.since or "", state.given}
end

-- ------------------------------------------------------------------ gate, as text

-- The gate of a request as a table, and as its hash has it: opens|rates|limited|turn|wait|keys, see lib/gate.lua.
-- Most requests have none. They share this table, because each field more in the table of a state costs time.
local OPEN = {opens = 0, rates = "", is_limited = false, turn = "", wait = 0, keys = ""}
local GATE = "^(%d+)|([^|]*)|?(1?)|?([^|]*)|?(%d*)|?(.*)$"

local function read_gate(text)
  local opens, rates, limited, turn, wait, keys = string.match(text, GATE)
  if not opens then
    error("BADSTATE the gate of " .. request .. " cannot be read", 0)
  end
  return {opens = tonumber(opens), rates = rates, is_limited = limited == "1", turn = turn,
    wait = tonumber(wait) or 0, keys = keys}
end

-- In the hash a 1 stands for is_limited: the gate was closed because the buckets have no room, and the request has its place
-- in the line.
local function gate_text(gate)
  local text = string.format("%d|%s", gate.opens, gate.rates)
  if gate.is_limited or gate.turn ~= "" or gate.wait > 0 or gate.keys ~= "" then
    text = text .. (gate.is_limited and "|1|" or "||") .. gate.turn
  end
  if gate.wait > 0 or gate.keys ~= "" then
    text = text .. string.format("|%d", gate.wait)
  end
  if gate.keys ~= "" then
    text = text .. "|" .. gate.keys
  end
  return text
end

-- ------------------------------------------------------------------ state

-- The request's hash as a table. load_state() reads the hash once, at the start of a script. save_state() writes
-- the changed values once, at its end. Between the two calls the table is the truth. Many numbers share two
-- fields, because each field costs more memory and time than all of these:
--   policy = limit:priority:attempts:backoff_min:backoff_max:lease_ms:retain_ms:time_limit_ms:durable:deadline:born:shards
--     and :remember, if the hash stays longer than the results
--   counts = seq:queued:high:fresh:total:done:dead:open:few:max_body:last_ms:sleep_due:sleeper:free
-- Only a request that must wait for a time, a rate its tenant's turn or a key has a third field: gate = opens|rates|limited|turn|wait|keys,
-- see lib/gate.lua. A request that was reopened, or is held, has a fourth one, see requeue_dead:
--   opened = reopened:since:cut:hold:holder
-- These are how often it was reopened, the last entry of `out` at that time, and how many of its sub-requests were
-- cancelled before. `hold` is until when a requeue of several calls keeps it from ending, "" = none does, and `holder` which.
local POLICY = "^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):([%d,]*):?(%d*)$"
local COUNTS = "^(%d+):(%-?%d+):(%d+):(%-?%d+):(%d+):(%d+):(%-?%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d*):(%d*)$"

local function load_state()
  local row = redis.call("HMGET", request, "state", "policy", "counts", "gate", "trace", "opened", "redact")
  if not row[1] or row[1] == "abandoned" then
    return nil
  end
  local limit, priority, attempts, backoff_min, backoff_max, lease_ms, retain_ms, time_limit_ms, durable, deadline, born, shards, remember =
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
  if remember ~= "" then
    found.remember = n(remember)
    found.known_ms = math.max(found.retain_ms, found.remember)  -- the marker of an ending in the log must outlive the hash
  end
  if row[5] then  -- few have one: so the others do not pay for the field
    found.trace = row[5]
  end
  if row[6] then
    local reopened, since, cut, hold, holder = string.match(row[6], "^(%d+):([%d-]*):(%d+):(%d*):(%x*)$")
    found.reopened, found.since = reopened ~= "0" and reopened or nil, since
    found.cut, found.hold, found.holder = n(cut), n(hold), holder
  end
  if row[7] then
    found.redact = row[7]
  end
  return found
end

-- string.format("%d") takes a tenth of the time of Lua's own conversion of a number.
local function policy_text(s)
  local text = string.format("%d:%d:%d:%d:%d:%d:%d:%d:%d:%d:%d:%s", s.limit, s.priority, s.attempts, s.backoff_min, s.backoff_max,
    s.lease_ms, s.retain_ms, s.time_limit_ms, s.durable, s.deadline, s.born, s.shards)
  return s.remember and string.format("%s:%d", text, s.remember) or text
end

local function counts_text(s)
  return string.format("%d:%d:%d:%d:%d:%d:%d:%d:%d:%d:%d:%d:%s:%s", s.seq, s.queued, s.high, s.fresh, s.total, s.done,
    s.dead, s.open, s.few, s.max_body, s.last_ms, s.sleep_due, s.sleeper, s.free)
end

-- Writes how often the request was reopened, and what holds it.
-- @rare
local function save_opened(s)
  redis.call("HSET", request, "opened", string.format("%s:%s:%d:%s:%s", s.reopened or "0", s.since or "", s.cut or 0,
    s.hold and string.format("%d", s.hold) or "", s.hold and s.holder or ""))
end

-- Returns what the counter has besides what is neither done nor dead: one while the request is open, one while it is held.
local function beside(s)
  return s.open + (s.hold and 1 or 0)
end

-- Returns how many are done or dead by the counter.
local function settled_by(s, left)
  return s.total - (s.cut or 0) - (left - beside(s))
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
