-- Settles the entries that are not done, each by its verdict: retry, timeout (a retry that is counted), dead,
-- release (no attempt is charged) or unbegun (its handler was not called, so it may be delivered with others, as in
-- give_back). On the last attempt a retry makes the entry dead. `work` is what read_work returns.
-- @include lib/entries/dead_letter.lua
-- @include lib/entries/retry_queue.lua
-- @include lib/core/note_failure.lua
local REASONS = {retry = "attempts", timeout = "timeout", dead = "rejected"}

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

-- Notes a pause that is longer than the request's backoff, see lib/gate/ahead.lua.
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
      owed[id] = nil
      settled = settled + 1
      if verdict == "timeout" then
        redis.call("HINCRBY", request, "timeouts", 1)
      end
      if verdict ~= "dead" and delay > state.backoff_max then
        note_pause(delay)
      end
      if verdict == "unbegun" then
        orphan(id, attempt <= 1 and 0 or now, math.max(0, attempt - 1))
      elseif verdict == "release" then
        orphan(id, now + delay, math.max(0, attempt - 1))
      elseif verdict ~= "dead" and attempt < state.attempts then
        orphan(id, now + delay, attempt)
      else
        local reason = REASONS[verdict]
        bury(state, id, {head = head, error = error, worker = worker, reason = reason})
      end
    end
  end
  return settled
end
