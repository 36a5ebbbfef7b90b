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
