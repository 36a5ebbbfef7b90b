-- Returns a rate from three arguments, or nil and the refusal.
local function read_rate(interval, burst, weight)
  local rate = {interval = tonumber(interval), burst = tonumber(burst), weight = tonumber(weight)}
  if not rate.interval or not rate.burst or not rate.weight or rate.interval < 1 or rate.weight < 1 or rate.burst < rate.weight then
    return nil, redis.error_reply("BADARGUMENT an interval in µs, a burst and a weight of at most the burst are expected")
  end
  return rate
end
