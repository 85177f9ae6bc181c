create publication %s for tables in schema public with (publish_via_partition_root = true)
