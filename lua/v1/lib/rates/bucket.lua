-- The bucket of a rate: a generic cell rate algorithm (GCRA), kept as "<tat>:<line>:<seen>" in µs with a TTL. `tat` is
-- the theoretical arrival time of the next sub-request. A caller without room waits in line: `line` is when the last one
-- in it may ask again. So a thousand requests that share a bucket do not all ask whenever there is room for one.
-- `seen` is the time of the last change. If the clock goes back, the other two go back with it.
-- A rate has an interval (µs between two sub-requests), a burst (how many may come together), and a weight: how many
-- each sub-request counts for.
local LONGEST_WAIT = 30000  -- ms; then it asks again, because others before it in the line may have gone

local function read_bucket(bucket, clock)
  local tat, line, seen = string.match(redis.call("GET", bucket) or "", "^(%d+):(%d+):(%d+)$")
  local back = math.max(0, (tonumber(seen) or 0) - clock)
  return math.max((tonumber(tat) or 0) - back, clock), math.max(0, (tonumber(line) or 0) - back)
end

local function write_bucket(bucket, clock, tat, line)
  line = math.min(line, clock + 1000 * LONGEST_WAIT)  -- else a caller that left would block the line for longer
  local rest = math.ceil((math.max(tat, line) - clock) / 1000) + 1000
  redis.call("SET", bucket, string.format("%d:%d:%d", tat, line, clock), "PX", string.format("%d", rest))
end

-- Takes up to `want` sub-requests. Returns how many, and if there are none, the ms until the caller may ask again.
-- `has_waited`: it has waited as long as it should. `never_waits`: it takes no place in the line.
local function take(bucket, now, rate, want, has_waited, never_waits)
  local clock, step, depth = 1000 * now, rate.interval * rate.weight, rate.interval * rate.burst
  local tat, line = read_bucket(bucket, clock)
  local room = math.floor((depth - (tat - clock)) / step)
  if room < 1 and never_waits then
    return 0, math.max(1, math.ceil((tat - depth + step - clock) / 1000))
  elseif room < 1 or (line > clock and not has_waited and not never_waits) then
    local several = math.max(1, math.min(want, math.floor(rate.burst / rate.weight / 2)))
    line = (line > clock and line or tat - depth) + several * step
    write_bucket(bucket, clock, tat, line)
    return 0, math.min(LONGEST_WAIT, math.max(1, math.ceil((line - clock) / 1000)))
  end
  local granted = math.min(room, want)
  write_bucket(bucket, clock, tat + granted * step, line)
  return granted, 0
end

-- Returns to the bucket what was taken and not used.
local function refund(bucket, now, rate, count)
  local clock = 1000 * now
  local tat, line = read_bucket(bucket, clock)
  write_bucket(bucket, clock, math.max(clock, tat - count * rate.interval * rate.weight), line)
end

-- Bounds what the bucket owes to the burst of a rate that is new.
local function refit(bucket, now, rate)
  local clock = 1000 * now
  local tat = read_bucket(bucket, clock)
  write_bucket(bucket, clock, math.min(tat, clock + rate.interval * rate.burst), 0)
end

-- Closes the bucket for `ms`; afterwards the rate goes on without a burst.
local function hold(bucket, now, rate, ms)
  local clock = 1000 * now
  local tat, line = read_bucket(bucket, clock)
  local opens = clock + 1000 * ms
  write_bucket(bucket, clock, math.max(tat, opens + rate.interval * (rate.burst - rate.weight)), math.max(line, opens))
end
