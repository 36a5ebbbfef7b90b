-- Charges an attempt to a sub-request whose handler's process died.
-- @include lib/core/note_failure.lua
-- @include lib/entries/dead_letter.lua
-- @include lib/entries/retry_queue.lua

-- Returns the delay before the next attempt: 0 after the first death, then the request's backoff. Otherwise a body that
-- kills its workers would kill them as fast as they can be started.
local function death_delay(state, attempt)
  if attempt <= 1 then
    return 0
  end
  return math.min(state.backoff_max, state.backoff_min * 2 ^ math.min(30, attempt - 2))
end

-- `how` is how its process ended; "" = unknown.
local function charge(state, now, entry, worker, how)
  local id, attempt = entry[1], entry[4]
  local head = string.match(id, "-(%d+)$") .. ":x:" .. attempt .. ":0:0"
  local text = how ~= "" and "the process of the handler ended by " .. how or "the worker died or let its lease expire"
  note_failure(now, 1, head, text)
  if attempt >= state.attempts then
    bury(state, id, {head = head, reason = "died", worker = worker, error = text})
  else
    orphan(id, now + death_delay(state, attempt), attempt)
  end
end
