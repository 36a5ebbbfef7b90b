-- A lease from its acquisition to its completion, as its holder asks for it.
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/finish.lua
-- @include lib/gate.lua
-- @include lib/entries.lua
-- @include lib/dead_letters.lua

-- ------------------------------------------------------------------ refusal

-- Why an acquire is refused.
local function acquire_error(count)
  if not count or count < 1 or count > 1000 then
    return redis.error_reply("BADCOUNT a slice of 1 to 1000 is expected")
  end
  return nil
end

local function allowance_error(allowance, wait)
  if allowance ~= "" and not (string.find(allowance, "^%d+$") and string.find(wait, "^%d+$")) then
    return redis.error_reply("BADARGUMENT whole numbers are expected as allowance and wait")
  end
  return nil
end

-- Returns why no slice can be taken now, or "ok".
local function refusal(state, now)
  if state.state ~= "active" or is_overdue(state, now) then
    return "paused"
  elseif state.held >= state.limit then
    return "busy"
  elseif ready(state, now) == 0 then
    return "empty"
  end
  return "ok"
end

-- ------------------------------------------------------------------ acquire

-- How a caller that shows a token gets a permit, a lease and a slice; see acquire.

-- Returns true if a token that names keys must be given up after this reply. After other replies it was used, waits for a
-- key, or is in its lane again.
local function is_useless(word)
  return word == "stale" or word == "ended" or word == "gone"
end

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
  local home, token
  if word == "ok" and state.gate.keys ~= "" then
    claim.count = is_ordered(state) and 1 or claim.count
    home, token = home_of(state), name_of_lease(k, g) .. token_suffix(state)
    if home and not all_have_room(home, token, tonumber(permit.lane)) then
      return {"full"}  -- and the permit stays queued
    end
  end
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
    leave_keys(state, k, g)
    park(state, k)
    if word == "limited" then  -- the permit is parked before the others are looked at
      close_gate(state, now, now + claim.wait, true)
    end
    local tokens = mint(state, now)
    save_state(state)
    return {word, tokens}
  end
  -- A fence is at least the clock in µs, so it is new even if a failover lost the last ones. It is at least `born`, too, which
  -- is after `now` if a former life of the id began in this ms. So a lease shows that the request has started.
  state.seq = math.max(state.seq + 1, 1000 * math.max(now, state.born))
  permit = {fence = string.format("%d", state.seq), g = g, op = op, started = claim.started, worker = claim.worker,
    shared = claim.shared == "1" and "1" or ""}
  if home then
    take_keys(home, token)
  end
  -- The lease is written first: if a later command is refused, reap drops a lease without a permit and gives its slice back.
  redis.call("ZADD", leases, string.format("%d", now + state.lease_ms), k)
  local entries, attempt = take_slice(state, now, consumer_of(permit, k), claim.count)
  if not entries then  -- the stream was deleted: nothing can be taken, doctor names it
    redis.call("ZREM", leases, k)
    leave_keys(state, k, permit.g, permit.op)
    return {"gone"}
  end
  permit.owed = #entries
  local is_row = entries[1] and (#entries == 1 or not due)  -- else other entries may be in between
  permit.first, permit.last = is_row and entries[1][1] or "", is_row and entries[#entries][1] or ""
  write_held(k, permit)
  state.held = state.held + 1
  local tokens = mint(state, now)
  save_state(state)
  return granted(state, now, permit, attempt, entries, tokens)
end

-- ------------------------------------------------------------------ whole leases

-- Returns true if the done ids are all entries of the lease, and none was settled before. A permit names its first and
-- last entry only if no entry of another lease stands between them. So it is enough to check the number of ids, the
-- first, the last, and that they grow; ids of equal length are ordered as text is. The check finds an id that is named
-- twice or lies outside. An id that no entry has may pass: XACK does not acknowledge it.
local function is_whole(permit, work)
  local args, first = work.args, work.first
  if work.done ~= permit.owed then
    return false
  end
  local before = args[first]
  for i = first + 1, first + work.done - 1 do
    local id = args[i]
    if #id < #before or (#id == #before and id <= before) then
      return false
    end
    before = id
  end
  return args[first] == permit.first and before == permit.last
end

-- Stores the results of a small request that one lease did in one call. A stream allocates 4 KiB for its first entry
-- and never frees a part. A copy of it takes only what it needs. So the results are written to the key of the counter,
-- which a small request does not use and pour overwrites, and are then copied to `out`. The bodies stay until the end,
-- because Redis may refuse any of these calls.
local function finish_few(state, worker, work)
  local first, count = work.first + work.done, work.done
  redis.call("UNLINK", counter)
  redis.call("XADD", counter, "*", "w", worker, unpack(work.args, first, first + 2 * count - 1))
  redis.call("COPY", counter, results, "REPLACE")
  state.left, state.done = 0, count
  return count
end

-- ------------------------------------------------------------------ results

-- Settles results. They are stored and counted before XACK: otherwise a refused command could lose an acknowledged
-- result. Then the count is corrected to what XACK has acknowledged.
-- `work` is what read_work returns.
local MOST = 980  -- arguments of one call; the house rule is 1,000

-- Returns what the lease still owes: id -> delivery count. A settled id is removed, so it
-- counts once. An id of another lease is never among them.
local function owed_by(consumer)
  local owed = {}
  for _, entry in ipairs(pending_of(consumer)) do
    owed[entry[1]] = entry[4]
  end
  return owed
end

local function acknowledge(state, worker, work)
  local args, first, count, stored = work.args, work.first, work.done, {}
  local last = first + 3 * count - 1
  check_acknowledge()
  for from = first + count, last, MOST do
    stored[#stored + 1] =
      redis.call("XADD", results, "*", "w", worker, unpack(args, from, math.min(last, from + MOST - 1)))
  end
  local acked = count_down(state, count, stored, nil, unpack(args, first, first + count - 1))
  state.done = state.done + acked
  if state.left ~= 0 then  -- else finish deletes the stream
    redis.call("XDEL", stream, unpack(args, first, first + count - 1))
  end
  return acked
end

local function acknowledge_each(state, worker, work, kept)
  local args, first, acked = work.args, work.first, 0
  check_acknowledge()
  for _, i in ipairs(kept) do
    local pair = first + work.done + 2 * i
    local stored = redis.call("XADD", results, "*", "w", worker, args[pair], args[pair + 1])
    acked = acked + count_down(state, 1, {stored}, nil, args[first + i])
    redis.call("XDEL", stream, args[first + i])
  end
  state.done = state.done + acked
  return acked
end

local function settle_done(state, worker, owed, work)
  local kept, count = {}, work.done
  for i = 0, count - 1 do
    local id = work.args[work.first + i]
    if owed[id] then
      owed[id] = nil
      kept[#kept + 1] = i
    end
  end
  if #kept == 0 then
    return 0
  end
  local settle = #kept == count and acknowledge or acknowledge_each
  return settle(state, worker, work, kept)
end

-- ------------------------------------------------------------------ verdicts

-- Settles the entries that are not done, each by its verdict: retry, timeout (a retry that is counted), dead, killed (dead
-- because a person ended the call), release (no attempt is charged) or unbegun (its handler was not called, so it may be delivered with others, as in
-- give_back). On the last attempt a retry makes the entry dead. `work` is what read_work returns.
local REASONS = {retry = "attempts", timeout = "timeout", dead = "rejected", killed = "killed"}

-- Notes the failed attempts, and why an entry was given back if there is a text. Only the first verdict on an id
-- counts, because it settles the id.
local function note_failures(now, owed, work)
  local args, seen, count, last = work.args, {}, 0, nil
  for i = work.others, work.last, 5 do
    local id = args[i]
    if owed[id] and not seen[id] then
      seen[id] = true
      local is_failure = args[i + 1] ~= "release" and args[i + 1] ~= "unbegun"
      count = count + (is_failure and 1 or 0)
      last = (is_failure or args[i + 4] ~= "") and i or last
    end
  end
  if last then
    note_failure(now, count, args[last + 3], args[last + 4])
  end
end

-- Notes a pause that is longer than the request's backoff, see lib/gate.lua.
-- @rare
local function note_pause(delay)
  if delay > tonumber(redis.call("HGET", request, "pause") or 0) then
    redis.call("HSET", request, "pause", string.format("%d", delay))
  end
end

local function settle_others(state, now, worker, owed, work)
  local args, settled = work.args, 0
  note_failures(now, owed, work)
  for i = work.others, work.last, 5 do
    local id, verdict, delay, head, error = args[i], args[i + 1], tonumber(args[i + 2]), args[i + 3], args[i + 4]
    local attempt = owed[id]
    if attempt then
      local is_final = verdict == "dead" or verdict == "killed"
      owed[id] = nil
      settled = settled + 1
      if verdict == "timeout" then
        redis.call("HINCRBY", request, "timeouts", 1)
      end
      if not is_final and delay > state.backoff_max then
        note_pause(delay)
      end
      if verdict == "unbegun" then
        orphan(id, attempt <= 1 and 0 or now, math.max(0, attempt - 1))
      elseif verdict == "release" then
        orphan(id, now + delay, math.max(0, attempt - 1))
      elseif not is_final and attempt < state.attempts then
        orphan(id, now + delay, attempt)
      else
        local reason = REASONS[verdict]
        bury(state, id, {head = head, error = error, worker = worker, reason = reason})
      end
    end
  end
  return settled
end

-- ------------------------------------------------------------------ complete

-- How a lease is settled; see complete.

-- Returns what the holder did, or nil and the refusal. args[first] starts `done` ids, then `done`
-- (head, body) pairs. args[others] starts the verdicts, which end at args[last].
local function read_work(args, first, done, last)
  local others = done and first + 3 * done
  if not done or done < 0 or done > 1000 or last < others - 1 or (last - others + 1) % 5 ~= 0 then
    return nil, redis.error_reply("BADVERDICT complete wants ids, (head, body) pairs and fives of id, verdict, delay, head, error")
  end
  for i = others, last, 5 do
    local verdict = args[i + 1]
    if not (REASONS[verdict] or verdict == "release" or verdict == "unbegun") or not tonumber(args[i + 2]) then
      return nil, redis.error_reply("BADVERDICT retry, timeout, dead, killed, release or unbegun and a delay in ms are expected")
    end
  end
  return {args = args, first = first, done = done, others = others, last = last}
end

-- Settles one by one. Returns how many sub-requests were settled.
-- @rare
local function settle_each(state, now, worker, consumer, work)
  local owed = owed_by(consumer)
  local settled = settle_done(state, worker, owed, work)
  return settled + settle_others(state, now, worker, owed, work)
end

-- `lease`: k, fence and op of the holder, and keep, as complete takes them. `permit`: what stands at k.
local function complete(state, now, permit, lease, work)
  local k, keep = lease.k, lease.keep
  if permit.fence ~= lease.fence or permit.op ~= lease.op then
    if redis.call("HGET", permits, "last" .. k) == lease.fence then
      return {"already", queued_tokens(state, now)}
    end
    return {"lost"}
  end
  local consumer = consumer_of(permit, k)
  local is_all, settled = is_whole(permit, work), nil
  if is_all and state.few == 2 then
    settled = finish_few(state, permit.worker, work)
  else
    pour(state)
    permit.first, permit.last = "", ""
    write_held(k, permit, keep ~= "1")  -- from now on a repeat settles what is still pending, one by one
  end
  if is_all then
    settled = settled or acknowledge(state, permit.worker, work)
  else
    settled = settle_each(state, now, permit.worker, consumer, work)
  end
  permit.owed = permit.owed - settled
  if keep == "1" then
    write_held(k, permit)
    redis.call("ZADD", leases, "XX", now + state.lease_ms, k)
  elseif state.left ~= 0 then  -- else finish deletes all of this
    if permit.owed > 0 then
      give_back(consumer, now, keep == "u")
    end
    forget(consumer)
    release_permit(state, k, permit)
  end
  return finish_or_mint(state, now, "ok", left_of(state) - state.open - (state.hold and 1 or 0))
end
