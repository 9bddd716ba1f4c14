-- Sites: limits with permits on each host, on each worker, or on each value of a tag (`per`).
--
-- The need of a task that waits is open: name \31\29 kind, for a site of that kind. The need of a task that
-- holds permits is bound to the site of its worker: name \31\29 kind=site. Callers look for \29 first: most
-- limits have no sites, and then these functions are not even created.

-- Return the site of a bucket, or its kind if the bucket is open; nil if the bucket is that of no site.
local function site_of(bucket)
  return string.match(bucket, '\29(.*)$')
end

-- Return whether a bucket is open, or one of the buckets of needs.
local function is_open(text)
  return string.find(text .. '\1', '\29[^=\1]+\1') ~= nil
end

-- Return needs, or a bucket, bound to the sites of the caller. A kind that the caller lacks stays open.
local function bound(text)
  local needs = string.gsub(text, '\29[^\1]+', state.sites)
  return needs
end

-- Return needs, or a bucket, as they were before they were bound.
local function unbound(text)
  local needs = string.gsub(text, '(\29[^=\1]+)=[^\1]*', '%1')
  return needs
end

-- Return the open buckets of a lane as one text.
local function site_buckets(what)
  local buckets = {}
  for _, need in ipairs(needs_of(what)) do
    if site_of(need.bucket) then buckets[#buckets + 1] = need.bucket end
  end
  return table.concat(buckets, '\1')
end

-- The number of permits on a worker whose limit is a share of its pool; 1 if the size is not known.
local SIZE_MOST = 100000

local function permits_of_share(share, bucket)
  local size = meta_number('size:' .. (site_of(bucket) or ''), SIZE_MOST)
  return math.max(math.ceil(share * size - 0.000001), 1)
end

-- Store the size of the pool of a worker, which is a site.
local function keep_size(site, size)
  local field = 'size:' .. site
  if meta_number(field, SIZE_MOST) == size then return end
  redis.call('HSET', META, field, size)
  redis.call('ZADD', ENDS, NOW + KEPT_MS, 'meta:' .. field)
end
