-- Returns how many chunks were submitted, and the digest over all of them. For one chunk it is `digest`.
local function chain_of()
  local row = redis.call("HMGET", request, "chunks", "chain", "digest")
  return tonumber(row[1]) or 1, row[2] or row[3] or ""
end
