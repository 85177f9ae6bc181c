START_REPLICATION SLOT %s LOGICAL %s (proto_version '1', publication_names %s, messages 'true')
