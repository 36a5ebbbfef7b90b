-- The texts of the errors of dead sub-requests, in the hash `errors`: each text once, under its digest. `dead` and `out`
-- have the digest. "+<digest>" says how many more dead sub-requests have the text; `bytes` = of all texts.

-- Keeps the text of one more dead sub-request; returns its digest. A text has at most 4,000 bytes (settings.MAX_ERROR).
-- A new text has 500 when those of the request would have more than 64 MiB otherwise.
-- @rare
local function keep_error(text)
  local cut, most_texts, name = "\n[...]\n", 64 * 1024 * 1024, nil
  for _, most in ipairs({4000, 500}) do
    if #text > most then  -- its beginning and its end are kept; no character of UTF-8 is cut
      local head, tail = math.floor(most / 4), #text - math.floor(most * 3 / 4) + #cut + 1
      while head > 0 and string.find(string.sub(text, head + 1, head + 1), "[\128-\191]") do
        head = head - 1
      end
      while string.find(string.sub(text, tail, tail), "[\128-\191]") do
        tail = tail + 1
      end
      text = string.sub(text, 1, head) .. cut .. string.sub(text, tail)
    end
    name = string.sub(redis.sha1hex(text), 1, 16)
    if redis.call("HEXISTS", errors, name) == 1 then
      redis.call("HINCRBY", errors, "+" .. name, 1)
      return name
    elseif tonumber(redis.call("HGET", errors, "bytes") or 0) + #text <= most_texts then
      break
    end
  end
  redis.call("HINCRBY", errors, "bytes", #text)
  redis.call("HSET", errors, name, text)
  return name
end
