-- The rates of requests: how many sub-requests may start in a time.

-- ------------------------------------------------------------------ bucket

-- The bucket of a rate: a generic cell rate algorithm (GCRA), kept as "<tat>:<line>:<seen>:<held>" in µs with a TTL. `tat` is
-- the theoretical arrival time of the next sub-request. A caller without room waits in line: `line` is when the last one
-- in it may ask again. So a thousand requests that share a bucket do not all ask whenever there is room for one.
-- `seen` is the time of the last change. If the clock goes back, the other times go back with it.
-- Nothing is taken before `held`, 0 = no hold. After a hold the rate goes on without a burst. A refund or a bound changes
-- only `tat`, so neither shortens a hold.
-- A rate has an interval (µs between two sub-requests), a burst (how many may come together), and a weight: how many
-- each sub-request counts for.
local LONGEST_WAIT = 30000  -- ms; then a caller asks again, because others before it in the line may have gone

local function read_bucket(bucket, clock)
  local tat, line, seen, held = string.match(redis.call("GET", bucket) or "", "^(%d+):(%d+):(%d+):(%d+)$")
  local back = math.max(0, (tonumber(seen) or 0) - clock)
  return math.max((tonumber(tat) or 0) - back, clock), math.max(0, (tonumber(line) or 0) - back),
    math.max(0, (tonumber(held) or 0) - back)
end

-- Returns the least `tat` that a hold leaves.
local function tat_after(held, rate)
  return held + rate.interval * (rate.burst - rate.weight)
end

local function write_bucket(bucket, clock, rate, tat, line, held)
  line = math.min(line, clock + 1000 * LONGEST_WAIT)  -- else a caller that left would block the line for longer
  held = tat_after(held, rate) > clock and held or 0
  local rest = math.ceil((math.max(tat, line, tat_after(held, rate)) - clock) / 1000) + 1000
  redis.call("SET", bucket, string.format("%d:%d:%d:%d", tat, line, clock, held), "PX", string.format("%d", rest))
end

-- Takes up to `want` sub-requests. Returns how many, and if there are none, the ms until the caller may ask again.
-- `has_waited`: the caller has waited as long as it should. `never_waits`: it takes no place in the line.
local function take(bucket, now, rate, want, has_waited, never_waits)
  local clock, step, depth = 1000 * now, rate.interval * rate.weight, rate.interval * rate.burst
  local tat, line, held = read_bucket(bucket, clock)
  tat = math.max(tat, tat_after(held, rate))
  local room = math.floor((depth - (tat - clock)) / step)
  if room < 1 and never_waits then
    return 0, math.max(1, math.ceil((tat - depth + step - clock) / 1000))
  elseif room < 1 or (line > clock and not has_waited and not never_waits) then
    local several = math.max(1, math.min(want, math.floor(rate.burst / rate.weight / 2)))
    line = (line > clock and line or tat - depth) + several * step
    write_bucket(bucket, clock, rate, tat, line, held)
    return 0, math.min(LONGEST_WAIT, math.max(1, math.ceil((line - clock) / 1000)))
  end
  local granted = math.min(room, want)
  write_bucket(bucket, clock, rate, tat + granted * step, line, held)
  return granted, 0
end

-- Gives back to the bucket what was taken and not used.
local function refund(bucket, now, rate, count)
  local clock = 1000 * now
  local tat, line, held = read_bucket(bucket, clock)
  write_bucket(bucket, clock, rate, math.max(clock, tat - count * rate.interval * rate.weight), line, held)
end

-- Bounds what the bucket owes to the burst of a rate that is new. The line begins anew.
local function refit(bucket, now, rate)
  local clock = 1000 * now
  local tat, _, held = read_bucket(bucket, clock)
  write_bucket(bucket, clock, rate, math.min(tat, clock + rate.interval * rate.burst), 0, held)
end

-- Closes the bucket for `ms`.
local function hold(bucket, now, rate, ms)
  local clock = 1000 * now
  local tat, line, held = read_bucket(bucket, clock)
  write_bucket(bucket, clock, rate, tat, line, math.max(held, clock + 1000 * ms))
end

-- ------------------------------------------------------------------ rate

-- Returns a rate from three arguments, or nil and the refusal.
local function read_rate(interval, burst, weight)
  local rate = {interval = tonumber(interval), burst = tonumber(burst), weight = tonumber(weight)}
  if not rate.interval or not rate.burst or not rate.weight or rate.interval < 1 or rate.weight < 1 or rate.burst < rate.weight then
    return nil, redis.error_reply("BADARGUMENT an interval in µs, a burst and a weight of at most the burst are expected")
  end
  return rate
end

-- ------------------------------------------------------------------ all buckets of a request

-- Takes from all buckets of a request, where one server has all keys.
local OWN = "="  -- the bucket of the request that is selected
local BUCKET = " (%S+) (%d+) (%d+) (%d+)"

local function each_rate(rates)
  local found = {}
  for name, interval, burst, weight in string.gmatch(rates, BUCKET) do
    local key = name == OWN and "rate" .. string.sub(request, 4) or "rate:{" .. name .. "}"
    found[#found + 1] = {key = key, interval = tonumber(interval), burst = tonumber(burst), weight = tonumber(weight)}
  end
  return found
end

local function refund_all(now, rates, count)
  for _, rate in ipairs(each_rate(rates)) do
    refund(rate.key, now, rate, count)
  end
end

-- Returns how many sub-requests all buckets allow, up to `want`, and else the ms until the caller may ask again.
local function take_all(now, rates, want, has_waited)
  local got, allowed = {}, want
  for i, rate in ipairs(each_rate(rates)) do
    local wait
    got[i], wait = take(rate.key, now, rate, allowed, has_waited)
    allowed = math.min(allowed, got[i])
    if allowed == 0 then
      for j, other in ipairs(each_rate(rates)) do
        if j < i then
          refund(other.key, now, other, got[j])
        end
      end
      return 0, wait
    end
  end
  for i, rate in ipairs(each_rate(rates)) do
    if got[i] > allowed then
      refund(rate.key, now, rate, got[i] - allowed)
    end
  end
  return allowed, 0
end
