
CREATE SCHEMA "zero_0/cdc";

CREATE TABLE "zero_0/cdc".backfilling (
    schema text NOT NULL,
    "table" text NOT NULL,
    "column" text NOT NULL,
    backfill jsonb NOT NULL
);

CREATE TABLE "zero_0/cdc"."changeLog" (
    watermark text NOT NULL,
    pos bigint NOT NULL,
    change json NOT NULL,
    precommit text
);

CREATE TABLE "zero_0/cdc"."replicationConfig" (
    "replicaVersion" text NOT NULL,
    publications text[] NOT NULL,
    "resetRequired" boolean,
    lock integer DEFAULT 1 NOT NULL,
    CONSTRAINT "replicationConfig_lock_check" CHECK ((lock = 1))
);

CREATE TABLE "zero_0/cdc"."replicationState" (
    "lastWatermark" text NOT NULL,
    owner text,
    "ownerAddress" text,
    lock integer DEFAULT 1 NOT NULL,
    CONSTRAINT "replicationState_lock_check" CHECK ((lock = 1))
);

CREATE TABLE "zero_0/cdc"."tableMetadata" (
    schema text NOT NULL,
    "table" text NOT NULL,
    metadata jsonb NOT NULL
);

CREATE TABLE "zero_0/cdc"."versionHistory" (
    "dataVersion" integer NOT NULL,
    "schemaVersion" integer NOT NULL,
    "minSafeVersion" integer NOT NULL,
    lock character(1) DEFAULT 'v'::bpchar NOT NULL,
    CONSTRAINT ck_schema_meta_lock CHECK ((lock = 'v'::bpchar))
);

ALTER TABLE ONLY "zero_0/cdc".backfilling
    ADD CONSTRAINT backfilling_pkey PRIMARY KEY (schema, "table", "column");

ALTER TABLE ONLY "zero_0/cdc"."changeLog"
    ADD CONSTRAINT "changeLog_pkey" PRIMARY KEY (watermark, pos);

ALTER TABLE ONLY "zero_0/cdc"."versionHistory"
    ADD CONSTRAINT pk_schema_meta_lock PRIMARY KEY (lock);

ALTER TABLE ONLY "zero_0/cdc"."replicationConfig"
    ADD CONSTRAINT "replicationConfig_pkey" PRIMARY KEY (lock);

ALTER TABLE ONLY "zero_0/cdc"."replicationState"
    ADD CONSTRAINT "replicationState_pkey" PRIMARY KEY (lock);

ALTER TABLE ONLY "zero_0/cdc"."tableMetadata"
    ADD CONSTRAINT "tableMetadata_pkey" PRIMARY KEY (schema, "table");

