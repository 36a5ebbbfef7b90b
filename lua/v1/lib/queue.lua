-- What a queue keeps beside its requests.

-- ------------------------------------------------------------------ lead

-- Who leads the maintenance of a queue, and what is due in it.
local AHEAD = 120000  -- ms; no check of a request lies farther ahead, unless there are very many requests

-- If the clock went back, the lock may end later than anyone could set it now. Such a lock is void, because its holder may
-- be dead.
local function may_lead(id, now, lock_ms, holder, lock_until)
  local ends = tonumber(lock_until or 0)
  return holder == id or ends < now or ends > now + lock_ms
end

local function lead(conf, id, now, lock_ms)
  redis.call("HSET", conf, "lock", id, "lock_until", now + lock_ms)
end

-- Returns the score in a reply of ZRANGE with one member; 0 = there is none.
local function score_of(found)
  return tonumber(found[2]) or 0
end

-- Returns when the pause of the queue ends; 0 = it is not paused. If the clock went back, the pause would last for too
-- long: a leader lets it begin anew.
local function pause_end(paused_until, now, leads)
  local ends = tonumber(paused_until) or 0
  if leads and ends > now then
    local period = tonumber(redis.call("HGET", conf, "paused_ms"))
    if period and ends > now + period then
      ends = now + period
      redis.call("HSET", conf, "paused_until", string.format("%.0f", ends))
    end
  end
  return ends > now and ends or 0
end

-- Returns when the first entry of `active` is due; 0 = there is none. If it lies too far ahead, the clock went back, and it
-- is due now.
local function active_due(now)
  local due = score_of(redis.call("ZRANGE", active, 0, 0, "WITHSCORES"))
  if due > now + AHEAD and due > now + 10 * redis.call("ZCARD", active) then
    return now
  end
  return due
end

-- ------------------------------------------------------------------ ticks

-- What leaders note about due ticks, in one hash: <schedule> -> "<tick>:<began>", if a leader has begun to submit the requests
-- of this tick. If it is still there at the next look, the leader has died in the middle, perhaps with the requests
-- submitted. Two more fields begin with a colon, which no schedule has in its name:
--   :watched  "<from>-<to>,..." when leaders looked for due ticks, or beat while some were due; a pause of LATE ms ends a span
--   :ticked   when a tick was set last; if that lies ahead, the clock went back, and ticks may lie too far ahead
local LATE = 10000  -- settings.LATE_TICK_MS: a tick that no leader lived to see in this time was missed
local SPANS = 50
local SLACK = 1000  -- ms that the clock may go back unnoticed

-- Notes that a leader lives at `now`. `first` is the earliest tick that is due: older spans are needed no more. Returns
-- the spans as text. The clock may have been ahead: no span reaches beyond `now`.
local function watch(now, first)
  local spans = {}
  for from, to in string.gmatch(redis.call("HGET", firing, ":watched") or "", "(%d+)%-(%d+)") do
    from, to = tonumber(from), math.min(tonumber(to), now)
    if from <= now and to >= first then
      spans[#spans + 1] = {from, to}
    end
  end
  if #spans > 0 and now - spans[#spans][2] <= LATE then
    spans[#spans][2] = now
  else
    spans[#spans + 1] = {now, now}
  end
  local parts = {}
  for i = math.max(1, #spans - SPANS + 1), #spans do
    parts[#parts + 1] = string.format("%d-%d", spans[i][1], spans[i][2])
  end
  local text = table.concat(parts, ",")
  redis.call("HSET", firing, ":watched", text)
  return text
end

local function has_gone_back(now)
  return (tonumber(redis.call("HGET", firing, ":ticked") or 0) or 0) > now + SLACK
end

-- Returns when the next tick is due, for the leader's beat; 0 = there is none. After the clock went back it is now.
local function beat_ticks(now, leads)
  local tick = tonumber(redis.call("ZRANGE", ticks, 0, 0, "WITHSCORES")[2]) or 0
  if not leads or tick == 0 then
    return tick
  elseif tick > now then
    return has_gone_back(now) and now or tick
  end
  watch(now, tick)
  return tick
end

local function note_ticked(now)
  if not has_gone_back(now) then
    redis.call("HSET", firing, ":ticked", string.format("%d", now))
  end
end

local function begun(schedule)
  local tick, began = string.match(redis.call("HGET", firing, schedule) or "", "^(%d+):(%d+)$")
  return tonumber(tick), tonumber(began)
end

local function note_begun(schedule, tick, began)
  redis.call("HSET", firing, schedule, string.format("%d:%d", tick, began))
end

-- ------------------------------------------------------------------ backlog

-- What waits in a queue that has a bound: loads[id] = "<admitted>:<chunk>:<settled>". These are the number of
-- sub-requests up to the last admitted chunk, that chunk's number, and how many sub-requests were settled by the
-- last report. `waiting` in conf is the sum of admitted - settled: a script that changes one must change the other.
local function read_load(id)
  local text = redis.call("HGET", loads, id)
  if not text then
    return nil
  end
  local admitted, chunk, settled = string.match(text, "^(%d+):(%d+):(%d+)$")
  return {admitted = tonumber(admitted), chunk = tonumber(chunk), settled = tonumber(settled)}
end

local function weight(load)
  return load and math.max(0, load.admitted - load.settled) or 0
end

-- `after` replaces `before`; nil = the request counts no more.
local function change_load(id, before, after)
  if after then
    redis.call("HSET", loads, id, after.admitted .. ":" .. after.chunk .. ":" .. after.settled)
  elseif before then
    redis.call("HDEL", loads, id)
  end
  local more = weight(after) - weight(before)
  if more ~= 0 then
    redis.call("HINCRBY", conf, "waiting", more)
  end
end

-- ------------------------------------------------------------------ endings

-- How ended requests move from `active` to the completion log.

-- @rare
local function forget_load(id)
  change_load(id, read_load(id), nil)
end

-- `summary`: as lib/state.lua makes it. Its marker stays longer than the request's tombstone: as long again, but
-- between `least` and `longest` ms. Returns true if the ending is new to the log; else false, and the error if the log
-- refused it. The marker is written first, because no ending may be logged twice, and deleted after an error. It names the
-- request, when that began and how often it was reopened: each opening of a request ends once.
local function log_ending(now, id, summary, keep)
  local state, born, total, done, dead, cancelled, over, priority, reason, retain_ms, opened = unpack(summary)
  local marker, more = id .. "|" .. born, nil
  if opened ~= "" then
    local reopened, since = string.match(opened, "^(%d+):(.*)$")
    marker, more = marker .. "|" .. reopened, {"reopened", reopened, "since", since}
  end
  local until_ms = now + retain_ms + math.min(keep.longest, math.max(keep.least, tonumber(retain_ms)))
  if redis.call("ZADD", logged, "NX", string.format("%d", until_ms), marker) == 0 then
    return false  -- and `active` is left alone: it may hold a new life of this id
  end
  local entry = redis.pcall("XADD", completed, "MAXLEN", "~", keep.most, "*", "id", id, "state", state, "priority",
    priority, "total", total, "done", done, "dead", dead, "cancelled", cancelled, "born", born, "ended", over,
    "reason", reason, unpack(more or {}))
  if type(entry) == "table" then
    redis.call("ZREM", logged, marker)
    return false, entry
  end
  if keep.is_bounded == nil then
    keep.is_bounded = redis.call("EXISTS", loads) == 1
  end
  if keep.is_bounded then
    forget_load(id)
  end
  return true
end

-- Removes the requests whose endings were logged. Deletes more markers than one call can add, because they would
-- accumulate otherwise.
local function drop_logged(now, ended)
  if #ended > 0 then
    redis.call("ZREM", active, unpack(ended))
  end
  local old = redis.call("ZRANGEBYSCORE", logged, "-inf", now, "LIMIT", 0, 10 + 2 * #ended)
  if #old > 0 then
    redis.call("ZREM", logged, unpack(old))
  end
end
